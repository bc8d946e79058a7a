"""Reliable fetch: a worker takes messages from a Redis broker, and none is lost if the worker is killed.

kombu takes a message with BRPOP and records it afterwards. A worker that is killed in between loses it, and recorded
messages come back only after ``visibility_timeout`` (an hour). Here a script moves messages from their queues into a
**store** of the worker, a hash in the broker's Redis. So a message is always in one of the two. An acknowledgement
deletes the message from the store.

- ``node/stores.py``: the keys, and what can be done with a store: open, seal, give back. ``node/left_stores.py``: the
  thread that gives back stores whose worker is gone.
- ``channel``: kombu's Redis channel, which fetches into a store. ``store_channel`` acknowledges and gives back,
  ``message`` has its messages and QoS, ``link`` is its connection, on which Redis also reports new messages. ``misses``
  says how long a channel waits if it often came too late.
- ``demand``: how many messages are fetched. ``amount`` decides that, by ``durations``.
- ``transport``: kombu's transport and poller with these channels, and the function that puts them into the worker's
  connection.
- ``fetcher``: the state that all channels of a worker share.

Why no message is lost, and none is taken from a live worker:

1. A message is fetched and stored in one script, and only into a store that is open. It leaves the store in one script
   or command: acknowledged, or moved back to the list it came from.
2. A store is **sealed** before its messages are moved back. From then on nothing is fetched into it. The script that
   moves a message deletes it from the store, so several nodes may try.
3. A worker registers with the ledger before it opens a store. Others read the list of stores first, and ask the ledger
   afterwards whether it still lists their workers; it does not answer while a new epoch has not opened. So a store
   whose worker is not listed belongs to one that stopped or lost its lease. There is one exception: a worker that
   starts while the ledger is unavailable opens a store for its plain tasks nevertheless. If another node asks the
   ledger before this worker has registered, the messages go back although the worker lives (see 4): tasks with
   ``acks_late`` that it runs may run again.
4. A worker that finds its store sealed was suspended, or cut off, for longer than its lease. It treats that like a lost
   connection: it drops the requests that it has not begun, whose messages are back in their queues, and opens another
   store.
"""
