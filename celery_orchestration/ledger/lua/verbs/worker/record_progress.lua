-- uses: schema records
--
-- record_progress: how far runs have come, in their own words. For people; the gate does not look at it.
--
-- ARGV  for each: id, fence, JSON (done, total, note; at most 2000 bytes)
-- Returns  count of those that were written: the others have ended, or their fence is void
-- Errors   none
-- Called again it gives the same answer.
local LONGEST = 2000
local count = 0
for _, report in ipairs(read_arguments('progress', 1)) do
  local r = load_run(report.id)
  if r and r.state == 'running' and r.fence == report.fence and #report.text <= LONGEST then
    call('HSET', K.run(r.id), 'progress', cmsgpack.pack({ fence = r.fence, at = NOW, what = report.text }))
    count = count + 1
  end
end
return count
