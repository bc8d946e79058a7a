-- uses: schema records term memory
--
-- record_next_due: when entries are due next, for people.
--
-- ARGV  term, then entry and due time (ms) of each
-- Returns  1 | 0 (another one leads: nothing changed)
-- Errors   none
-- Called again: the same.
if not is_term(ARGV[1]) then return 0 end
allow_when_full()
for _, one in ipairs(read_arguments('next_due', 2)) do
  -- adopt_entries and dispatch report a key of another type. An entry that people removed must not come back.
  local key = K.entry(one.entry)
  if redis.pcall('HEXISTS', key, 'generation') == 1 then call('HSET', key, 'next', one.due_ms) end
end
return 1
