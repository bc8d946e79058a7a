-- uses: schema records lanes rules statistics index room ended_runs transitions entries hand_over memory
--
-- enable_or_disable: a person turns a job on or off. On: its failures are forgotten, and its waiting runs may start, in
-- rank order.
--
-- ARGV  job, 'on' | 'off', who, why
-- Returns  { 'ok' | 'unknown', { granted: {id, grant number} for the caller to publish } }
-- Errors   none
-- Called again: the same; what was granted and not published is granted again by a sweep.
allow_when_full()
local name, on, who, why = ARGV[1], ARGV[2] == 'on', ARGV[3], ARGV[4]
local j = job(name)
if not j then return { 'unknown', {} } end
if not on then
  switch_off(j, who, why)
  clear_timer(name, 'cool_down')
  j.probe, j.dirty = nil, true
elseif j.disabled then
  switch_on(j, who, why)
else
  audit(who, 'enable', name, why)
  decide('job:' .. name, who)
  j.failures, j.dirty = 0, true
end
refresh(j)
refresh_dependents(j)
hand_over(64)
flush()
return { 'ok', HAND.grants }
