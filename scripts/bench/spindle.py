# SPDX-License-Identifier: GPL-2.0
"""An nbdkit plugin: a file as a 7200 rpm disk would serve it, read-only.

    nbdkit -t 32 python spindle.py file=IMAGE

The model has one surface of concentric tracks, one head, a queue of QUEUE requests of which the one that is reached first
is served next, and a buffer for what passes below the head between seeks. Times are kept on the disk's own clock, so that a
late wake-up of this process does not add up.
"""

import math
import os
import threading
import time

import nbdkit

API_VERSION = 2

# Seconds of a revolution at 7200 rpm.
REVOLUTION = 60 / 7200
# Bytes of a track. Drives have from 0.8 to 2 MB; with TRACK_SWITCH this gives 175 MB/s.
TRACK = 1600 * 1024
# Bytes that the seek times are for: an image is at the start of a disk of 1 TB.
CAPACITY = 10**12
# Seconds to settle on a neighbouring track and to cross all of them; the average seek is 8 ms.
TRACK_SWITCH = 0.001
FULL_STROKE = 0.0142
# Requests that the drive chooses from, as with SATA's native command queueing.
QUEUE = 32
# Bytes that the head reads on after a request when there is no other.
LOOK_AHEAD = 2 * TRACK

RATE = TRACK / REVOLUTION
SUSTAINED_RATE = TRACK / (REVOLUTION + TRACK_SWITCH)


class Request:
    """A read that waits for the head."""

    def __init__(self, offset, length):
        self.offset, self.end = offset, offset + length
        self.arrival = time.monotonic()
        self.done = threading.Event()


class Spindle:
    """Where the head is, and what it does next."""

    def __init__(self):
        # The disk's clock, in seconds: when the last request was complete.
        self.clock = time.monotonic()
        # What has passed below the head since the last seek: from here, and at `clock` up to here.
        self.start = self.end = 0
        # In order of arrival.
        self.pending = []
        self.wake = threading.Condition()
        threading.Thread(target=self.serve, daemon=True).start()

    def read(self, offset, length):
        """Return when the disk would have read this."""
        with self.wake:
            request = Request(offset, length)
            self.pending.append(request)
            self.wake.notify()
        request.done.wait()

    def completion(self, request):
        """When a request would be complete, were it the next, and whether that takes a seek."""
        now = max(self.clock, request.arrival)
        ahead = (now - self.clock) * SUSTAINED_RATE
        # What is buffered, and what follows on this track; a head that has filled the buffer reads no more.
        limit = ahead + TRACK if ahead < LOOK_AHEAD else LOOK_AHEAD - (request.end - request.offset)
        if self.start <= request.offset <= self.end + limit:
            return max(now, self.clock + pass_over(self.end, request.end)), False
        arrived = now + seek(self.end, request.offset)
        wait = (angle(request.offset) - arrived / REVOLUTION) % 1 * REVOLUTION
        return arrived + wait + pass_over(request.offset, request.end), True

    def serve(self):
        """Complete one request after the other, forever."""
        while True:
            with self.wake:
                self.wake.wait_for(lambda: self.pending)
                chosen = min(self.pending[:QUEUE], key=lambda request: self.completion(request)[0])
                self.pending.remove(chosen)
            now, sought = self.completion(chosen)
            time.sleep(max(0, now - time.monotonic()))
            if sought:
                self.start, self.end = chosen.offset, chosen.end
            elif now > self.clock + pass_over(self.end, chosen.end):
                # It was in the buffer, and the head has moved on.
                self.end += int(min((now - self.clock) * SUSTAINED_RATE, LOOK_AHEAD))
            else:
                self.end = max(self.end, chosen.end)
            self.clock = now
            chosen.done.set()


def angle(offset):
    """Where on its track an offset is, in revolutions. Tracks are skewed by what it takes to get to the next one."""
    return (offset / TRACK + offset // TRACK * TRACK_SWITCH / REVOLUTION) % 1


def seek(origin, target):
    """Seconds to move the head from the track of one offset to that of another."""
    tracks = abs(origin // TRACK - target // TRACK)
    if not tracks:
        return 0
    return TRACK_SWITCH + (FULL_STROKE - TRACK_SWITCH) * math.sqrt(tracks * TRACK / CAPACITY)


def pass_over(start, end):
    """Seconds that the head needs from one offset to a later one when it follows the tracks."""
    if end <= start:
        return 0
    return (end - start) / RATE + (end // TRACK - start // TRACK) * TRACK_SWITCH


disk = None
path = None


def config(key, value):
    global path
    if key != "file":
        raise ValueError(f"no parameter {key}, only file")
    path = os.path.realpath(value)


def config_complete():
    if path is None:
        raise ValueError("file=IMAGE is missing")


def after_fork():
    # Threads do not survive nbdkit's fork.
    global disk
    disk = Spindle()


def thread_model():
    return nbdkit.THREAD_MODEL_PARALLEL


def open(readonly):
    return os.open(path, os.O_RDONLY)


def close(handle):
    os.close(handle)


def get_size(handle):
    return os.fstat(handle).st_size


def can_write(handle):
    return False


def can_multi_conn(handle):
    return True


def pread(handle, buffer, offset, flags):
    disk.read(offset, len(buffer))
    os.preadv(handle, [buffer], offset)
