-- uses: schema records
--
-- read_decisions: what people, and failures, have decided, for members to remember: should the ledger be emptied, they restore
-- it (verb restore_decisions). Reads only.
--
-- ARGV  most jobs, most entries
-- Returns  { number of the last decision, epoch or '', JSON: pause (JSON: by, why, at), jobs[] (name, disabled), entries[] (entry,
--            name, task, job, every, written, paused; without written: of code), left_out (how many did not fit) }
-- Errors   none
-- Called again: the same, as far as nothing changed.
local most_jobs, most_entries = tonumber(ARGV[1]), tonumber(ARGV[2])
local found = { jobs = {}, entries = {}, left_out = 0 }
local g = call('HMGET', K.ledger, 'decisions', 'pause')
if G.paused then found.pause = g[2] or '' end

see_to('disabled_jobs')
for _, name in ipairs(call('SMEMBERS', K.disabled_jobs)) do
  local disabled = redis.pcall('HGET', K.job(name), 'disabled')
  if type(disabled) == 'string' and #found.jobs < most_jobs then
    table.insert(found.jobs, { name = name, disabled = disabled })
  elseif type(disabled) == 'string' then
    found.left_out = found.left_out + 1
  end
end

see_to('added_entries')
see_to('paused_entries')
for _, entry in ipairs(call('SUNION', K.added_entries, K.paused_entries)) do
  local v = redis.pcall('HMGET', K.entry(entry), 'name', 'task', 'job', 'every', 'written', 'paused')
  if not v.err and v[1] and #found.entries < most_entries then
    table.insert(found.entries, { entry = entry, name = v[1], task = v[2] or nil, job = v[3] or nil, every = v[4] or nil,
      written = v[5] or nil, paused = v[6] or nil })
  elseif not v.err and v[1] then
    found.left_out = found.left_out + 1
  end
end
return { int(tonumber(g[1]) or 0), G.epoch or '', cjson.encode(found) }
