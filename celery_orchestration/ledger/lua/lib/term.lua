-- The terms and leaders of all services. Needs records.
--
-- Each service that shares the ledger has a leader of its own, for its own entries. A term names its service, unless that is
-- the one the ledger is named after: 17 or 17@billing; so does the id of an entry: nightly or billing:nightly.

function lead_key(service)
  return service == '' and K.leader or K.service_leader(service)
end

function service_of_term(term)
  return string.match(term, '@(.*)$') or ''
end

function service_of_entry(entry)
  return string.match(entry, '^([^:]*):') or ''
end

function is_term(term)
  local held = read_hash(lead_key(service_of_term(term)), 'term', 'until')
  return held and held.term == term and (held['until'] or 0) >= NOW
end

-- How long a leader may take to adopt its entries.
local ADOPTING_MS = 60000

-- Is the entry left over: the leader of its service has had time to adopt it, and has not?
function is_left(entry)
  local v = redis.pcall('HGET', lead_key(service_of_entry(entry)), 'since')
  local since = type(v) == 'string' and tonumber(v) or NOW
  return NOW - since > ADOPTING_MS and (tonumber(call('ZSCORE', K.entries, entry) or nil) or 0) < since
end

-- The scheduler of a service that leads now, or nil.
function leader(service)
  local lead = read_hash(lead_key(service), 'who', 'name', 'since', 'until')
  if not lead or not lead.who or not lead.name or not lead.since or (lead['until'] or 0) < NOW then return nil end
  return { service = service, who = lead.who, name = lead.name, since = lead.since }
end

-- The leaders of all services.
function leaders()
  local found, services = {}, redis.pcall('SMEMBERS', K.led_services)
  for _, service in ipairs(services.err and {} or services) do found[#found + 1] = leader(service) end
  return found
end
