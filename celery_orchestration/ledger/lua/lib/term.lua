-- Whose term it is, and what they brought. Needs records.

local function is_term(term)
  local v = call('HMGET', P .. 'lead', 'term', 'until')
  return v[1] == term and (tonumber(v[2]) or 0) >= NOW
end

-- How long a leader may take to adopt its entries.
local ADOPTING_MS = 60000

-- Has who leads not adopted this entry, though there was time?
local function is_left(entry)
  local v = redis.pcall('HGET', P .. 'lead', 'since')
  local since = type(v) == 'string' and tonumber(v) or NOW
  return NOW - since > ADOPTING_MS and (tonumber(call('ZSCORE', P .. 'entries', entry) or nil) or 0) < since
end
