-- uses: schema records memory
--
-- record_audit: records an action of a person for which there is no verb.
--
-- ARGV  who, what, about, why
-- Returns  1
-- Errors   none
-- Called again: it is recorded once more.
allow_when_full()
audit(ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return 1
