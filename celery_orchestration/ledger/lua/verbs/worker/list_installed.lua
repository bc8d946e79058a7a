-- uses: schema records
--
-- list_installed: the jobs that have a policy, each with its hash. Reads only.
--
-- ARGV  none
-- Returns  { name, hash, ... }
-- Errors   none
-- Called again: the same.
return call('HGETALL', K.installed)
