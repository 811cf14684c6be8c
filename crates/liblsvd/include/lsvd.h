/*
 * liblsvd: a log-structured virtual disk in a file, for one process and any number of its threads.
 *
 * A disk has a size in bytes and a version, which counts its updates: +1 for each. Updates are appended to a log.
 * After a crash of the process or the machine a disk is at exactly one version: it has every update up to it and none
 * after, and it is at least the version that the last successful fsync_lsvd or write_durable_lsvd was answered for.
 *
 * Results. Functions that give an int give 0, or a negative errno value. Functions that give a pointer give NULL on
 * an error, those that give a version give LSVD_ERROR. After every error errno is set, and error_lsvd() says in words
 * what is wrong and what to do. The values:
 *   -EINVAL   the call itself is wrong (a null pointer, a disk that is closed, a range outside the disk, not whole
 *             sectors, a version that does not follow); making it again will not help
 *   -ENOENT   no such file; or that version is not held
 *   -EEXIST   is never given: creating over a file that is there is -EINVAL
 *   -EBUSY    another process has the disk open
 *   -EAGAIN   the disk is between two versions (see put_writes_lsvd), or frames that were to be sent are gone
 *   -ENOSPC   the log may not grow; heals when space is freed
 *   -EBADMSG  bytes do not match their checksum: what was read is not the data that was written
 *   -EIO      a write or sync has failed: nothing is written to this disk any more until it is opened again; or an
 *             operating system call failed
 *   -EFBIG    more than one buffer may hold
 *   -ENOMEM   no memory for a buffer
 *   -ENOTRECOVERABLE  a mistake in this library
 *
 * Threads. All functions may be called from any thread, also at once on one disk. Two calls are ordered only if one
 * returned before the other began. Calls that are inside a disk while it is closed come to their end or give -EINVAL,
 * and so does every later one: a closed disk is never mistaken for another one. In a process that was forked from one
 * with open disks every call gives -EINVAL; open disks in the process that uses them.
 *
 * Offsets and lengths are bytes, multiples of 512. A write of up to 4 MiB that begins at a multiple of 4,096 is one
 * update, which a crash leaves whole or not there at all; longer ones become several. Blocks that were never
 * written, and those that were trimmed or zeroed, read as zeroes.
 */
#ifndef LSVD_H
#define LSVD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. A program runs with every library of the same major number that is not older. */
#define LSVD_MAJOR 0
#define LSVD_MINOR 1

/* For read_lsvd: the content as it is now. */
#define LSVD_CURRENT UINT64_MAX
/* For write_lsvd: whatever version comes next. */
#define LSVD_NEXT ((uint64_t)0)
/* For put_writes_lsvd: whatever version the writes begin behind. */
#define LSVD_ANY UINT64_MAX
/* What functions that give a version give on an error. */
#define LSVD_ERROR UINT64_MAX

struct lsvd_disk;
struct lsvd_writes;

/* Makes a disk of `size` bytes (a multiple of 512, at most 1 TiB) in a file that does not exist yet, and opens it. The
 * file grows with what is written. Its log may take twice the size and 512 MiB; create_log_lsvd sets another limit
 * (at least eight segments of 16 MiB; 0 is the default). */
struct lsvd_disk *create_lsvd(const char *pathname, uint64_t size);
struct lsvd_disk *create_log_lsvd(const char *pathname, uint64_t size, uint64_t log_bytes);

/* Opens a disk for this process alone, and recovers it if need be. */
struct lsvd_disk *open_lsvd(const char *pathname);

/* Writes a new disk at `new_pathname` with the content and version of the one at `old_pathname` and nothing that was
 * superseded. The old one must not be open; it stays as it is. */
int cleanup_lsvd(const char *old_pathname, const char *new_pathname);
/* The same from an open disk, which may be used meanwhile; the copy takes what came later by put_writes_lsvd. */
int cleanup_disk_lsvd(struct lsvd_disk *lsvd, const char *new_pathname);

/* Reads `length` bytes as they were at `version`. Only the present version is held: any other one is -ENOENT. Up to
 * 4 MiB are of one version; longer reads are made of several. */
int read_lsvd(struct lsvd_disk *lsvd, char *buf, uint64_t length, uint64_t offset, uint64_t version);

/* Writes, and returns when the bytes have their version and reads see them; they are durable with the next
 * fsync_lsvd. With a `version` other than LSVD_NEXT the write is one update, and refused (-EINVAL) unless that version
 * is the next one. The buffer must not change before the call returns. */
int write_lsvd(struct lsvd_disk *lsvd, const char *buf, uint64_t length, uint64_t offset, uint64_t version);

/* Writes, and returns when the bytes are durable. Calls from several threads share their writes to the medium. */
int write_durable_lsvd(struct lsvd_disk *lsvd, const char *buf, uint64_t length, uint64_t offset);

/* Makes a range read as zeroes. Trim also says that the space may be used for something else. */
int trim_lsvd(struct lsvd_disk *lsvd, uint64_t length, uint64_t offset);
int zero_lsvd(struct lsvd_disk *lsvd, uint64_t length, uint64_t offset);

/* Returns when everything whose write had returned before the call is durable. After a failure it fails for ever. */
int fsync_lsvd(struct lsvd_disk *lsvd);

/* The version, 0 for a disk that was never written; and the bytes of the disk. LSVD_ERROR on an error. */
uint64_t get_version_lsvd(struct lsvd_disk *lsvd);
uint64_t get_size_lsvd(struct lsvd_disk *lsvd);

/* All updates behind `first_version` as bytes for put_writes_lsvd, made durable first; `*size` is set to their number.
 * Also where the log does not have them one by one any more: then what they left is given. The bytes are the
 * caller's, to be given back with free_lsvd. More than 1 GiB is -EFBIG: then writes_lsvd gives them piece by piece.
 * If there is nothing new, `*size` is 0 and the result is not NULL. */
char *get_writes_lsvd(struct lsvd_disk *lsvd, uint64_t first_version, size_t *size);
void free_lsvd(char *buf);

/* The same in pieces of at most 16 MiB, in the order in which they are to be put. next_writes_lsvd gives NULL with
 * `*size` 0 and errno 0 at the end; threads that call it at once get different pieces. What is still to be sent is kept
 * in the log until close_writes_lsvd. */
struct lsvd_writes *writes_lsvd(struct lsvd_disk *lsvd, uint64_t first_version);
char *next_writes_lsvd(struct lsvd_writes *writes, size_t *size);
void close_writes_lsvd(struct lsvd_writes *writes);

/* Applies whole pieces in their order. They must be of a disk of the same size and history, and begin behind
 * `first_version` (LSVD_ANY: wherever they do), which this disk has reached: else -EINVAL. Updates that are here
 * already are left out, so a repeat does no harm. A disk of version 0 becomes a copy and takes the history over; a
 * copy that is written to otherwise leaves it.
 * Where frames are gone, the content is between two versions from the first piece to the last. Until then all other
 * calls give -EAGAIN, also after a crash; go on by asking for the writes since get_version_lsvd anew. */
int put_writes_lsvd(struct lsvd_disk *lsvd, uint64_t first_version, const char *buf, size_t size);

/* Makes everything durable and lets the file go. The disk is gone afterwards, also on an error, which says that what
 * was not durable may be lost. NULL is 0. */
int close_lsvd(struct lsvd_disk *lsvd);

/* What went wrong in the last call of this thread that failed, for people. Valid until the thread's next failure. */
const char *error_lsvd(void);

/* Major and minor number of the library, as (major << 16 | minor). */
uint32_t library_version_lsvd(void);

#ifdef __cplusplus
}
#endif

#endif
