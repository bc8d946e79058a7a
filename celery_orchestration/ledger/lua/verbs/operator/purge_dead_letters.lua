-- uses: schema records lanes rules statistics index room ended_runs transitions memory
--
-- purge_dead_letters: deletes dead letters.
--
-- ARGV  who, ids...
-- Returns  how many of them existed
-- Errors   none
-- Called again: 0.
allow_when_full()
local count, last = 0, nil
for i = 2, #ARGV do
  local r = load_run(ARGV[i], K.dead_letter)
  if r then
    remove_dead_letter(r.id, r.job)
    count, last = count + 1, r
  end
end
if count == 1 then audit(ARGV[1], 'purge', last.id, last.job) end
if count > 1 then audit(ARGV[1], 'purge', count .. ' dead letters', '') end
return count
