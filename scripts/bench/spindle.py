# SPDX-License-Identifier: GPL-2.0
"""An nbdkit plugin that serves a file read-only, with the speed of a 7200 rpm disk.

    nbdkit -t 32 python spindle.py file=IMAGE

The model has one surface of concentric tracks and one head. Of a queue of QUEUE requests it serves the one that completes first. A
buffer keeps the data that passes below the head between seeks. The disk has its own clock, so that late wake-ups of this process do
not add up.
"""

import math
import os
import threading
import time

import nbdkit

API_VERSION = 2

# Time of a revolution at 7200 rpm, in seconds.
REVOLUTION = 60 / 7200
# Size of a track in bytes. Drives have tracks of 0.8 to 2 MB. With TRACK_SWITCH this value gives 175 MB/s.
TRACK = 1600 * 1024
# Size of the disk in bytes, for the seek times. The image is at its start.
CAPACITY = 10**12
# Seek times in seconds: to the next track, and across all tracks. The average seek is 8 ms.
TRACK_SWITCH = 0.001
FULL_STROKE = 0.0142
# Depth of the queue from which the drive chooses, as with SATA's native command queueing.
QUEUE = 32
# Readahead of the idle head after a request, in bytes.
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
    """The state of the disk: clock, position of the head, buffer and queue."""

    def __init__(self):
        # Clock of the disk in seconds: the completion of the last request.
        self.clock = time.monotonic()
        # Range that has passed below the head since the last seek, as of `clock`.
        self.start = self.end = 0
        # Requests in the order of their arrival.
        self.pending = []
        self.wake = threading.Condition()
        threading.Thread(target=self.serve, daemon=True).start()

    def read(self, offset, length):
        """Wait until the modelled disk has read a range."""
        with self.wake:
            request = Request(offset, length)
            self.pending.append(request)
            self.wake.notify()
        request.done.wait()

    def completion(self, request):
        """Return the completion time of a request if it is served next, and whether it needs a seek."""
        now = max(self.clock, request.arrival)
        ahead = (now - self.clock) * SUSTAINED_RATE
        # Reach without a seek: the readahead so far and one more track. The readahead ends when the buffer is full.
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
                # The data was in the buffer, and the head has read on.
                self.end += int(min((now - self.clock) * SUSTAINED_RATE, LOOK_AHEAD))
            else:
                self.end = max(self.end, chosen.end)
            self.clock = now
            chosen.done.set()


def angle(offset):
    """Return the angle of an offset on its track, in revolutions. Each track is skewed against the one before by TRACK_SWITCH."""
    return (offset / TRACK + offset // TRACK * TRACK_SWITCH / REVOLUTION) % 1


def seek(origin, target):
    """Return the seconds to move the head from the track of one offset to the track of another."""
    tracks = abs(origin // TRACK - target // TRACK)
    if not tracks:
        return 0
    return TRACK_SWITCH + (FULL_STROKE - TRACK_SWITCH) * math.sqrt(tracks * TRACK / CAPACITY)


def pass_over(start, end):
    """Return the seconds that the head takes from one offset to a later one along the tracks."""
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
    # Start the thread here: threads do not survive the fork of nbdkit.
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
