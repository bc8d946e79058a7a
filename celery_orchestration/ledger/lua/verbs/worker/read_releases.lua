-- uses: schema records
--
-- read_releases: the policies that live workers bring, to be merged.
--
-- ARGV  names of releases, separated by blanks
-- Returns  { policies (JSON) of each, in the same order, '' where unknown }
-- Errors   none
-- Called again: the same, as far as nothing changed.
local found = {}
for name in string.gmatch(ARGV[1], '%S+') do found[#found + 1] = call('HGET', K.releases, name) or '' end
return found
