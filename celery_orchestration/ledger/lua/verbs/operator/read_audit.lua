-- uses: schema records
--
-- read_audit: who changed what, the latest first.
--
-- ARGV  how many
-- Returns  { JSON of each }
return call('LRANGE', P .. 'audit', 0, tonumber(ARGV[1]) - 1)
