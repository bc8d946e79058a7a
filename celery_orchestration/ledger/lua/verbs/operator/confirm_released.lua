-- uses: schema records memory
--
-- confirm_released: these released runs are in the broker now. The ledger deletes them.
--
-- ARGV  ids...
-- Returns  how many
-- Errors   none
-- Called again: 0.
allow_when_full()
local count = 0
for _, id in ipairs(ARGV) do
  local r = load_run(id)
  if r and r.state == 'released' then
    delete_run(r)
    count = count + 1
  end
  call('ZREM', K.released, id)
end
return count
