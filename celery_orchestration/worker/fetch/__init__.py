"""Reliable fetch: how a worker takes messages from a Redis broker so that none is lost with it.

kombu takes a message with BRPOP and writes it down afterwards: a worker that is killed in between loses it, and
messages that were written down come back after ``visibility_timeout`` (an hour). Here a script moves messages from
their queues into a **store** of the worker, a hash in the broker's Redis: they are always in one of the two. An
acknowledgement deletes the message from the store.

- ``node/stores.py``: the keys, and what can be done with a store: open, seal, give back. ``node/recovery.py``: the
  thread that gives back stores whose worker is gone.
- ``channel``: kombu's Redis channel, which fetches into a store. ``store_channel`` acknowledges and gives back,
  ``message`` has its messages and QoS, ``link`` is its connection: it hears when there is a message to fetch.
  ``misses`` says how long a channel waits that often came too late.
- ``demand``: how many messages are fetched. ``amount`` decides it, by ``durations``.
- ``transport``: kombu's transport and poller with these channels, and how they get into the worker's connection.
- ``fetcher``: what all channels of a worker share.

Why no message is lost, and none is taken from a worker that lives:

1. A message is fetched and stored in one script, and only into a store that is open. It leaves the store in one script
   or command: acknowledged, or moved back to the list it came from.
2. A store is **sealed** before its messages are moved back. From then on nothing is fetched into it. The script that
   moves a message deletes it from the store, so several nodes may try.
3. A worker registers with the ledger before it opens a store. Others read the list of stores first, and ask the ledger
   afterwards whether it still lists their workers; it does not answer while a new epoch has not opened. So a store
   whose worker is not listed belongs to one that stopped or lost its lease. The exception: a worker that starts while
   the ledger is away opens a store all the same, for its plain tasks. If another one asks the ledger before it has
   registered, its messages go back once too often (see 4): tasks with ``acks_late`` that it runs may run again.
4. A worker that finds its store sealed stood still, or was cut off, for longer than its lease. It treats that like a
   lost connection: it drops the requests it has not begun, whose messages are back in their queues, and opens another.
"""
