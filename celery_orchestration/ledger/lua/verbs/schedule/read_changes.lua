-- uses: schema records term
--
-- read_changes: what people did to the schedule of a service.
--
-- ARGV  number of the last change that is known, or '' (none is), service
-- Returns  { number of the last change, 1 if all since the known one follow | 0 if too many were made: ask for all,
--            { {entry, 1 if it is there, what was written (JSON) or ''} } }: those that changed, or all that people added
see_to('added', 'set')
see_to('changed', 'zset')
local last, known = tonumber(call('HGET', P .. 'g', 'changes') or nil) or 0, tonumber(ARGV[1])
local names = {}
if known then
  if known < (tonumber(call('HGET', P .. 'g', 'unchanged') or nil) or 0) then return { int(last), 0, {} } end
  names = call('ZRANGEBYSCORE', P .. 'changed', '(' .. int(known), '+inf')
else
  names = call('SMEMBERS', P .. 'added')
end
local found = {}
for _, entry in ipairs(names) do
  if service_of_entry(entry) == ARGV[2] then
    local doc = redis.pcall('HGET', P .. 'e:' .. entry, 'doc')
    found[#found + 1] = { entry, call('EXISTS', P .. 'e:' .. entry), type(doc) == 'string' and doc or '' }
  end
end
return { int(last), 1, found }
