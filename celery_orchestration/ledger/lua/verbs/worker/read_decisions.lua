-- uses: schema records
--
-- read_decisions: what people and failures have decided. Nodes remember it, and restore it if the ledger is emptied
-- (verb restore_decisions). Reads only.
--
-- ARGV  most jobs, most entries
-- Returns  { number of the last decision, epoch or '', JSON: pause (JSON: by, why, at), jobs[] (name, disabled), entries[]
--            (entry, name, task, job, every, written, paused; one without written is from code), left_out (how many did
--            not fit) }
-- Errors   none
-- Called again: the same, unless something changed.
local most_jobs, most_entries = tonumber(ARGV[1]), tonumber(ARGV[2])
local found = { jobs = {}, entries = {}, left_out = 0 }
local g = read_hash(K.ledger, 'decisions', 'pause')
if G.paused then found.pause = g.pause or '' end

ensure_type('disabled_jobs')
for _, name in ipairs(call('SMEMBERS', K.disabled_jobs)) do
  local disabled = redis.pcall('HGET', K.job(name), 'disabled')
  if type(disabled) == 'string' and #found.jobs < most_jobs then
    table.insert(found.jobs, { name = name, disabled = disabled })
  elseif type(disabled) == 'string' then
    found.left_out = found.left_out + 1
  end
end

ensure_type('added_entries')
ensure_type('paused_entries')
for _, entry in ipairs(call('SUNION', K.added_entries, K.paused_entries)) do
  local e = read_hash(K.entry(entry), 'name', 'task', 'job', 'every', 'written', 'paused')
  if e and e.name and #found.entries < most_entries then
    e.entry = entry
    table.insert(found.entries, e)
  elseif e and e.name then
    found.left_out = found.left_out + 1
  end
end
return { int(g.decisions or 0), G.epoch or '', cjson.encode(found) }
