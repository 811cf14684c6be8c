/*
 * libfreebs: volumes of a freebs cluster for programs, and intervals: changes in several places of a volume that happen
 * together or not at all.
 *
 * Results. Functions that give an int give 0, or a negative errno value. Functions that give a pointer give NULL on an
 * error, freebs_size gives FREEBS_ERROR. After every error errno is set, and freebs_error() says in words what is wrong
 * and what to do. The values:
 *   -EINVAL   the call itself is wrong (a null pointer, something that is closed, a range past the end, too much at once,
 *             a change of a snapshot); making it again will not help
 *   -ENOENT   there is no volume or snapshot of that name
 *   -EBUSY    somebody else has the volume and is there, or this program has it already
 *   -EACCES   the volume is not this program's any more: it was attached elsewhere, or given back
 *   -EAGAIN   too few nodes answered in time, or the cluster was closed under the call; a change may still happen
 *   -ENOSPC   the nodes are full; heals when space is freed
 *   -EBADMSG  no copy of a block is whole
 *   -EIO      an operating system call failed
 *   -ECANCELED  freebs_commit alone: the interval is aborted, and nothing of it is there, nor will be
 *   -ENOTRECOVERABLE  a mistake in this library
 *
 * Threads. All functions may be called from any thread, also at once on one cluster, volume or interval; calls on one
 * interval take turns. Calls wait until they have their answer. Two calls are ordered only if one returned before the
 * other began. Calls that are under way while what they use is closed come to their end or give an error; every later
 * one gives -EINVAL: what is closed is never mistaken for something else. The library has threads of its own, so in a
 * process that was forked from one that has connected every call gives -EINVAL; connect in the process that uses it.
 *
 * Offsets and lengths are bytes; nothing has to be aligned. What a call has answered is durable on a quorum of the
 * copies. Blocks that were never written, and those that were trimmed, read as zeroes.
 */
#ifndef FREEBS_H
#define FREEBS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. A program runs with every library of the same major number that is not older. */
#define FREEBS_MAJOR 0
#define FREEBS_MINOR 1

/* Bytes of one read or write. */
#define FREEBS_REQUEST_BYTES_MAX 67108864
/* An interval: bytes of data in a shard, where a block that is changed in part counts whole; runs of blocks in a shard;
 * changes; and bytes of all its writes together, those that later ones lie over included. */
#define FREEBS_INTERVAL_BYTES_MAX 4194304
#define FREEBS_INTERVAL_RUNS_MAX 1024
#define FREEBS_INTERVAL_CHANGES_MAX 4096
#define FREEBS_INTERVAL_BUFFER_MAX 16777216

/* Given by freebs_size on an error: all bits are 1. */
#define FREEBS_ERROR UINT64_MAX

struct freebs_cluster;
struct freebs_volume;
struct freebs_interval;

/* The place of an interval in the log of a shard. */
struct freebs_place {
    uint64_t volume;   /* number of the volume */
    uint64_t view;     /* the view in which it was found durable on a quorum */
    uint64_t sequence; /* its frame, counted in that view's log */
    uint32_t shard;    /* shard of the volume, from 0 */
    uint32_t reserved; /* 0 */
};

/* Nodes on this machine are spoken with in plain, over loopback. To reach nodes on other machines a process has to say
 * one of these before it connects for the first time, and for all its clusters:
 * that it speaks TLS, with the key and certificate in the data directory of a node on this machine. It can speak as one
 * node only: another one is -EINVAL afterwards, and so is a directory of a cluster without an authority; */
int freebs_speak_as_node(const char *data_directory);
/* or that it speaks plain, in a network that nobody else reaches. */
void freebs_trust_network(void);

/* Finds the cluster that has a node at one of these addresses: HOST:PORT, several with commas between them. -EAGAIN if
 * none of them answers within ten seconds. */
struct freebs_cluster *freebs_connect(const char *addresses);

/* The same under a name of the program's own: when it was killed, and another process connects under that name, it gets
 * its volumes at once, and whatever is left of the earlier one is refused from then on. No two processes that are to
 * live at the same time may have one name. */
struct freebs_cluster *freebs_connect_as(const char *addresses, const char *name);

/* Gives back all volumes that are still attached through this cluster, and ends. Volumes and intervals of it are refused
 * from then on, but have to be given up as always. NULL is 0. */
int freebs_close(struct freebs_cluster *cluster);

/* Attaches a volume by its name. Nobody else can use it until it is given back. */
struct freebs_volume *freebs_attach(struct freebs_cluster *cluster, const char *volume);

/* Opens a snapshot of a volume to read it, whoever has the volume. -EAGAIN if the snapshot is not complete. */
struct freebs_volume *freebs_open_snapshot(struct freebs_cluster *cluster, const char *volume, const char *snapshot);

/* Gives a volume back, or closes a snapshot. It is gone afterwards, also on an error: -EAGAIN says that the cluster could
 * not be told, and that the volume is free when its leases have ended. NULL is 0. */
int freebs_detach(struct freebs_volume *volume);

/* Bytes that it had when it was attached, or when the snapshot was taken. FREEBS_ERROR on an error. */
uint64_t freebs_size(struct freebs_volume *volume);

/* Reads at most FREEBS_REQUEST_BYTES_MAX. */
int freebs_read(struct freebs_volume *volume, void *buf, uint64_t length, uint64_t offset);

/* Writes at most FREEBS_REQUEST_BYTES_MAX. One write of at most 4 KiB that lies in one block happens as a whole or not
 * at all; of a longer one a part may be there if the program is killed before the answer. An interval has no parts. The
 * buffer must not change before the call returns. */
int freebs_write(struct freebs_volume *volume, const void *buf, uint64_t length, uint64_t offset);

/* The range reads as zeroes afterwards, and takes no room. */
int freebs_trim(struct freebs_volume *volume, uint64_t length, uint64_t offset);

/* Returns when all that was answered is durable, which it is already. */
int freebs_flush(struct freebs_volume *volume);

/* Begins an interval. Several may be open at a time, each of its own; there are none within one another. Nothing of it
 * is anywhere but in this program's memory before it is committed. */
struct freebs_interval *freebs_begin(struct freebs_volume *volume);

/* Reads from the volume, with this interval's own changes over it. */
int freebs_interval_read(struct freebs_interval *interval, void *buf, uint64_t length, uint64_t offset);

/* Changes that happen with the commit. Of changes that overlap the later one counts. -EINVAL past the end, or for too
 * many changes or bytes in one interval: then this change is left out, and the others stay. */
int freebs_interval_write(struct freebs_interval *interval, const void *buf, uint64_t length, uint64_t offset);
int freebs_interval_trim(struct freebs_interval *interval, uint64_t length, uint64_t offset);

/* Does all of it, or nothing. The interval is gone afterwards, whatever is answered:
 *   0           all of it is there, and durable on a quorum
 *   -ECANCELED  aborted: nothing of it is there, nor will be. errno is the reason: EINVAL (too large, or over several
 *               shards), ENOSPC, EBADMSG (a block that it changes in part can't be read), EACCES (the volume was given back before)
 *   -EINVAL     there is no such interval, or no place for `count`
 *   others      the outcome is not known. -EAGAIN: too few nodes answered in time, and it may still happen; a read of any
 *               of its blocks waits until that is decided, and shows it. -EACCES: the volume was attached elsewhere
 * `places` has room for `*count` places, and gets those of the shards that it has changed; `*count` is then set to how many
 * there are, and those beyond the room are left out. Both may be NULL. */
int freebs_commit(struct freebs_interval *interval, struct freebs_place *places, size_t *count);

/* Drops it. NULL is 0. */
int freebs_abort(struct freebs_interval *interval);

/* What went wrong in the last call of this thread that failed, for people. Valid until the thread's next failure. */
const char *freebs_error(void);

/* Major and minor number of the library, as (major << 16 | minor). */
uint32_t freebs_library_version(void);

#ifdef __cplusplus
}
#endif

#endif
