-- uses: schema records
--
-- read_audit: who changed what, the latest first.
--
-- ARGV  how many
-- Returns  { JSON of each }
-- Errors   none
-- Called again: the same, unless something changed.
return call('LRANGE', K.audit, 0, tonumber(ARGV[1]) - 1)
