-- uses: records session gate room life hand_over
--
-- cancel: runs that have not started end as revoked. A running one is left alone; a dead letter is remembered as revoked.
--
-- ARGV  worker, or who (a person) if the number is '', number of the call, why, ids...
-- Returns  { { endings: {id, why} to carry out }, { granted: {id, grant number} to publish } }
-- Errors   UNKNOWNWORKER
-- Called again with the same number it gives the same answer.
local by_hand = ARGV[2] == ''
if not by_hand then
  local before, problem = replayed(ARGV[1], 'cancel', ARGV[2])
  if problem then return problem end
  if before then return before end
end

local endings = {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local r = load_run(id)
  if not r and not by_hand and call('EXISTS', P .. 'dl:' .. id) == 1 then call('HSET', P .. 'dl:' .. id, 'revoked', 1) end
  if r and (r.st == 'waiting' or r.st == 'later' or r.st == 'granted' or r.st == 'queued') then
    call_off(job(r.job), r, ARGV[3])
    endings[#endings + 1] = { id, ARGV[3] }
    if by_hand then audit(ARGV[1], 'cancel', id, r.job) end
  end
end
hand_over(16)
flush()
if by_hand then return { endings, HAND.grants } end
return remember({ endings, HAND.grants })
