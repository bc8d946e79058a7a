-- Does what is due: runs whose time has come go to the gate, waiting runs that expired end, and jobs whose timer is up
-- are refreshed (a job that has cooled down may try a run). The verbs turn and sweep call it.
-- Needs records, rules, index, room, transitions.

-- Is this run dropped, because its job is disabled and has when_disabled 'drop'? A forced run, a probe run, and the
-- retry of a run that has started are not.
function is_dropped(j, r)
  return j.disabled and j.policy.when_disabled == 'drop' and not r.started and not enabled_for(j, r.id, r.rank)
end

local function come_due(r)
  local j = job(r.job)
  no_longer_put_off(j, r)
  if not j.policy.keyed then r.key = '' end -- a release may have changed that
  if not r.started and not is_forced(r.rank) then
    -- It ranks as if it arrived now. A retry keeps its rank.
    r.rank = math.floor(r.rank / CLASS) * CLASS + next_seq()
  end
  if is_dropped(j, r) then
    r.state = 'dropped' -- no state of the ledger: call_off must not take it out of one
    call_off(j, r, 'skipped')
    return { r.id, 'skipped' }
  end
  local reason = reason_to_wait(j, r)
  local words = as_recorded(reason)
  r.first_wait = r.first_wait or words
  STATS.waits(r, reason, words)
  enqueue(j, r)
  refresh(j)
end

-- Returns { endings: {id, why} to carry out }, whether there is more, and how much was due.
function wake(limit)
  local endings, more, count = {}, false, 0
  local function up_to_now(key, most)
    local found = call('ZRANGEBYSCORE', key, '-inf', int(NOW), 'LIMIT', 0, most)
    more = more or #found == most
    count = count + #found
    return found
  end
  for _, id in ipairs(up_to_now(K.expiring, limit)) do
    -- A higher attempt that waits for the one before it is added again when it goes to the gate.
    call('ZREM', K.expiring, id)
    local r = load_run(id)
    if r and (r.state == 'waiting' or r.state == 'later') then
      call_off(job(r.job), r, 'expired')
      endings[#endings + 1] = { id, 'expired' }
    end
  end
  for _, id in ipairs(up_to_now(K.later, limit)) do
    local r = load_run(id)
    if r and r.state == 'later' then
      endings[#endings + 1] = come_due(r)
    else
      call('ZREM', K.later, id)
    end
  end
  for _, timer in ipairs(up_to_now(K.timers, limit)) do
    call('ZREM', K.timers, timer)
    local rule, name = string.match(timer, '^(.-):(.*)$')
    local j = job(name)
    -- Other rules look at the clock themselves.
    if j and rule == 'cool_down' and j.disabled and not j.probe then j.probe, j.dirty = '', true end
    if j then refresh(j) end
  end
  G.next, G.dirty = nil, true
  for _, key in ipairs({ K.expiring, K.later, K.timers }) do
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if first[1] then note_due(tonumber(first[2])) end
  end
  return endings, more, count
end
