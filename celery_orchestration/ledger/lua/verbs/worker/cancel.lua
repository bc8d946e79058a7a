-- uses: schema records session lanes rules statistics index room ended_runs transitions entries hand_over memory
--
-- cancel: runs that have not started end as revoked. A running one is left alone; a dead letter is remembered as revoked.
--
-- ARGV  worker, or who (a person) if the number is '', number of the call, why, ids... (from a worker: task ids, which
--       stand for all their runs)
-- Returns  { { endings: {id, why} to carry out }, { granted: {id, grant number} to publish } }, and by hand
--            { the state in which each was found, '' if there is none }
-- Errors   UNKNOWNWORKER, NEWEPOCH
-- Called again with the same number it gives the same answer.
local by_hand = ARGV[2] == ''
if not by_hand then
  local before, problem = replayed(ARGV[1], 'cancel', ARGV[2])
  if problem then return problem end
  if before then return before end
end

allow_when_full()
local endings, found, last = {}, {}, nil
local ids = { unpack(ARGV, 4) }
for _, task in ipairs(by_hand and {} or { unpack(ids) }) do
  for _, id in ipairs(call('SMEMBERS', K.task_runs(task))) do ids[#ids + 1] = id end
end
for _, id in ipairs(ids) do
  local r = load_run(id)
  if not by_hand then
    -- Workers remember revoked ids, so the id of a revoked dead letter cannot be used again.
    if r and (r.state == 'running' or r.state == 'retrying') then call('HSET', K.run(id), 'revoked', 1) end
    if not r and call('EXISTS', K.dead_letter(id)) == 1 then call('HSET', K.dead_letter(id), 'revoked', 1) end
  end
  found[#found + 1] = r and r.state or ''
  if r and (r.state == 'waiting' or r.state == 'later' or r.state == 'granted' or r.state == 'queued') then
    call_off(job(r.job), r, ARGV[3])
    endings[#endings + 1] = { id, ARGV[3] }
    last = r
    if by_hand then call('ZADD', K.deadlines, -1, id) end -- the next sweep carries it out
  end
end
hand_over(16)
flush()
if by_hand and last then audit(ARGV[1], 'cancel', #endings == 1 and last.id or #endings .. ' runs', last.job) end
if by_hand then return { endings, HAND.grants, found } end
return remember({ endings, HAND.grants })
