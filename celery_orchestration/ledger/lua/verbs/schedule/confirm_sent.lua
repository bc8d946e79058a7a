-- uses: schema records lanes rules statistics index room ended_runs transitions entries memory
--
-- confirm_sent: fires of tasks that are no jobs of ours are in the broker now.
--
-- ARGV  of each: sent (next_ms: the due time after it, or ''; missed: how many before it were missed)
-- Returns  how many were recorded
-- Errors   none
-- Called again: 0.
allow_when_full()
local count = 0
for _, one in ipairs(read_arguments('sent', 1)) do
  local e = load_entry(one.entry)
  if e and e.generation == one.generation and one.due_ms > e.last then
    note_fire(e, one.due_ms, one.next_ms, 'sent', nil, one.missed)
    count = count + 1
  end
end
return count
