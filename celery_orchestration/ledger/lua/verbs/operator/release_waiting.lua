-- uses: schema records lanes rules statistics index room ended_runs transitions memory
--
-- release_waiting: releases everything that waits now, some at a time: the caller publishes it past the gate. The
-- message of a released run stays in the ledger until it was published (verb confirm_released). If that is not
-- confirmed within a minute, the run goes back to the gate.
--
-- ARGV  who, how many at most, which runs: '' at first, then what the call before returned
-- Returns  { which runs (for the next call), { {id, queue, message} } }: publish them, call confirm_released, call this
--          again until there are none
-- Errors   none
-- Called again: the same runs, until confirm_released was called.
allow_when_full()
local limit, up_to = tonumber(ARGV[2]), tonumber(ARGV[3])
local found, count = {}, 0

if not up_to then
  -- Runs that arrive later are left out: workers that still have a gate put them back.
  up_to = G.seq
  local waiting = call('ZCARD', K.waiting) + call('ZCARD', K.later)
  if waiting > 0 then audit(ARGV[1], 'release', waiting .. ' runs', '') end
end

local function let_out(key)
  take_from(key, limit - count, math.huge, function(id)
    local r = load_run(id)
    if not r or (r.state ~= 'waiting' and r.state ~= 'later') or r.rank % CLASS > up_to then return false end
    local j = job(r.job)
    withdraw(j, r)
    note_end(j, r, 'released', nil, false)
    ended(j, r, nil)
    refresh(j)
    refresh_dependents(j)
    r.state = 'released'
    save_run(r)
    call('ZADD', K.released, int(r.rank), id)
    count = count + 1
    return true
  end)
end

for _, id in ipairs(call('ZRANGE', K.released, 0, limit - 1)) do
  local r = load_run(id)
  if r and r.state == 'released' then count = count + 1 else call('ZREM', K.released, id) end
end
if count == 0 then
  let_out(K.waiting)
  let_out(K.later)
end
for _, id in ipairs(call('ZRANGE', K.released, 0, limit - 1)) do
  found[#found + 1] = { id, load_run(id).queue, call('HGET', K.run(id), 'message') }
end
flush()
return { int(up_to), found }
