-- uses: schema records
--
-- read_releases: the policies of releases, to be merged.
--
-- ARGV  names of releases, separated by blanks
-- Returns  { policies (JSON) of each, in the same order, '' where unknown }
-- Errors   none
-- Called again: the same, unless something changed.
local found = {}
for name in string.gmatch(ARGV[1], '%S+') do found[#found + 1] = call('HGET', K.releases, name) or '' end
return found
