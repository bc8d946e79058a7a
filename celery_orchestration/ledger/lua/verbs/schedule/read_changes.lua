-- uses: schema records term
--
-- read_changes: what people changed in the schedule of a service.
--
-- ARGV  number of the last change that the caller knows, or '' (none), service
-- Returns  { number of the last change, 1: all later changes follow | 0: there were too many, ask for all,
--            { {entry, 1 if it exists, what was written (JSON) or ''} } }: the entries that changed, or all that people
--            added
-- Errors   none
-- Called again: the same, unless something changed.
ensure_type('added_entries')
ensure_type('changed_entries')
local last, known = tonumber(call('HGET', K.ledger, 'changes') or nil) or 0, tonumber(ARGV[1])
local names = {}
if known then
  if known < (tonumber(call('HGET', K.ledger, 'unchanged') or nil) or 0) then return { int(last), 0, {} } end
  names = call('ZRANGEBYSCORE', K.changed_entries, '(' .. int(known), '+inf')
else
  names = call('SMEMBERS', K.added_entries)
end
local found = {}
for _, entry in ipairs(names) do
  if service_of_entry(entry) == ARGV[2] then
    local written = redis.pcall('HGET', K.entry(entry), 'written')
    found[#found + 1] = { entry, call('EXISTS', K.entry(entry)), type(written) == 'string' and written or '' }
  end
end
return { int(last), 1, found }
