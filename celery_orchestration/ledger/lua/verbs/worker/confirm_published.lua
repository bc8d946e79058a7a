-- uses: schema records lanes rules statistics memory
--
-- confirm_published: granted runs are in the broker now.
--
-- ARGV  of each: grant
-- Returns  how many are still on their way (the others have started, or were granted again)
-- Errors   none
-- Called again: the same.
local PUBLISHED_MS = 30000

allow_when_full()
local count = 0
for _, one in ipairs(read_arguments('grant', 1)) do
  local r = load_run(one.id)
  if r and (r.state == 'granted' or r.state == 'queued') and r.grant == one.number then
    r.state = 'queued'
    save_run(r)
    call('ZADD', K.deadlines, int(G.clock + PUBLISHED_MS * 2 ^ math.min(r.tries, 12)), r.id)
    count = count + 1
  end
end
return count
