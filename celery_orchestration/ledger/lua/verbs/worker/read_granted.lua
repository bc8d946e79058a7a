-- uses: schema records
--
-- read_granted: the messages to publish for grants.
--
-- ARGV  of each: grant
-- Returns  of each { queue, message }, or {} if that grant is no longer the latest
-- Errors   none
-- Called again: the same, unless something changed.
local found = {}
for _, one in ipairs(read_arguments('grant', 1)) do
  local r = load_run(one.id)
  local good = r and (r.state == 'granted' or r.state == 'queued') and r.grant == one.number
  found[#found + 1] = good and { r.destination, call('HGET', K.run(r.id), 'message') } or {}
end
return found
