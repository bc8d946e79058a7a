-- uses: schema records memory
--
-- record_audit: somebody did something that is not done by a verb of its own.
--
-- ARGV  who, what, about, why
-- Returns  1
-- Errors   none
-- Called again: it is recorded once more.
make_way()
audit(ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return 1
