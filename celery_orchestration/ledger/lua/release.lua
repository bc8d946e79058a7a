-- uses: records gate room life
--
-- release: everything that waits is to be published past the ledger, some at a time: the way out. A run that is released
-- is no longer the gate's; its message stays here until it was published (verb released).
--
-- ARGV  who, how many at most
-- Returns  { {id, queue, message} }: publish them, tell released, call again until there are none
-- Called again: the same ones, until released was told.
local limit = tonumber(ARGV[2])
local found = {}

local function let_out(key)
  for _, id in ipairs(call('ZRANGE', P .. key, 0, -1)) do
    if call('ZCARD', P .. 'released') >= limit then return end
    local r = load_run(id)
    if r and (r.st == 'waiting' or r.st == 'later') then
      local j = job(r.job)
      withdraw(j, r)
      note_down(j, r, 'released', nil, false)
      ended(j, r, nil)
      refresh(j)
      refresh_dependents(j)
      r.st = 'released'
      save_run(r)
      call('ZADD', P .. 'released', int(r.rank), id)
    end
  end
end

if call('EXISTS', P .. 'released') == 0 then
  let_out('wait')
  let_out('later')
  local count = call('ZCARD', P .. 'released')
  if count > 0 then audit(ARGV[1], 'release', count .. ' runs', '') end
end
for _, id in ipairs(call('ZRANGE', P .. 'released', 0, limit - 1)) do
  local r = load_run(id)
  if r and r.st == 'released' then
    found[#found + 1] = { id, r.q, call('HGET', P .. 'r:' .. id, 'm') }
  else
    call('ZREM', P .. 'released', id)
  end
end
flush()
return found
