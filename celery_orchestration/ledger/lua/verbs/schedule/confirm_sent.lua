-- uses: schema records statistics rules index room transitions entries memory
--
-- confirm_sent: fires of tasks that are no jobs of ours are in the broker now.
--
-- ARGV  for each: entry, generation, due time (ms), the due time after it (ms) or '', how many before it were missed
-- Returns  how many were written down
-- Called again: 0.
make_way()
local count = 0
for i = 1, #ARGV, 5 do
  local e, due = load_entry(ARGV[i]), tonumber(ARGV[i + 2])
  if e and e.gen == ARGV[i + 1] and due > e.last then
    note_fire(e, due, ARGV[i + 3], 'sent', nil, tonumber(ARGV[i + 4]))
    count = count + 1
  end
end
return count
