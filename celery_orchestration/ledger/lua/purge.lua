-- uses: records gate room life
--
-- purge: dead letters go.
--
-- ARGV  who, ids...
-- Returns  how many there were
-- Called again: 0.
local count = 0
for i = 2, #ARGV do
  local r = load_run(ARGV[i], 'dl:')
  if r then
    unbury(r.id, r.job)
    count = count + 1
  end
end
if count == 1 then audit(ARGV[1], 'purge', ARGV[2], '') end
if count > 1 then audit(ARGV[1], 'purge', count .. ' dead letters', '') end
return count
