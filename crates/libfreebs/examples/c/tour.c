/*
 * A tour of libfreebs: every function once. Build and run:
 *
 *     cc -o tour tour.c $(pkg-config --cflags --libs freebs) -pthread && ./tour 127.0.0.1:7400 demo
 *
 * Writes into the first 8 MiB of the volume that it is given; a third argument names a snapshot of it to be read. Exit
 * status 0 if all is as it should be.
 */
#include <freebs.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096, THREADS = 4, ROUNDS = 20 };
#define MIB ((uint64_t)1 << 20)

static void check(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "failed: %s: %s\n", what, freebs_error());
        exit(1);
    }
}

#define CHECK(x) check((x), #x)

struct job {
    struct freebs_volume *volume;
    int number;
};

/* Each thread changes two blocks of its own, always both. */
static void *writer(void *arg) {
    struct job *job = arg;
    uint64_t left = 2 * MIB + (uint64_t)job->number * BLOCK, right = left + MIB;
    for (int i = 0; i < ROUNDS; i++) {
        int found;
        struct freebs_interval *interval = freebs_begin(job->volume);
        CHECK(interval != NULL);
        CHECK(freebs_interval_write(interval, &i, sizeof i, left + 7) == 0);
        CHECK(freebs_interval_write(interval, &i, sizeof i, right + 7) == 0);
        CHECK(freebs_interval_read(interval, &found, sizeof found, right + 7) == 0 && found == i);
        CHECK(freebs_commit(interval, NULL, NULL) == 0);
        CHECK(freebs_read(job->volume, &found, sizeof found, left + 7) == 0 && found == i);
    }
    return NULL;
}

static void threads(struct freebs_volume *volume) {
    pthread_t t[THREADS];
    struct job jobs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){volume, i};
        CHECK(pthread_create(&t[i], NULL, writer, &jobs[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* Both or neither. */
static void intervals(struct freebs_volume *volume) {
    char back[8];
    struct freebs_place places[4];
    size_t count = 4;
    struct freebs_interval *interval = freebs_begin(volume);
    CHECK(interval != NULL);
    CHECK(freebs_interval_write(interval, "here", 4, 100) == 0);
    CHECK(freebs_interval_write(interval, "there", 5, 900 * 1024) == 0);
    CHECK(freebs_interval_trim(interval, BLOCK, 8 * BLOCK) == 0);
    CHECK(freebs_read(volume, back, 4, 100) == 0 && memcmp(back, "here", 4) != 0);
    CHECK(freebs_commit(interval, places, &count) == 0);
    CHECK(count == 1 && places[0].shard == 0 && places[0].view > 0 && places[0].sequence > 0);
    CHECK(freebs_read(volume, back, 4, 100) == 0 && memcmp(back, "here", 4) == 0);
    CHECK(freebs_read(volume, back, 5, 900 * 1024) == 0 && memcmp(back, "there", 5) == 0);
    CHECK(freebs_read(volume, back, 8, 8 * BLOCK) == 0 && memcmp(back, "\0\0\0\0\0\0\0", 8) == 0);

    CHECK((interval = freebs_begin(volume)) != NULL);
    CHECK(freebs_interval_write(interval, "never", 5, 100) == 0);
    CHECK(freebs_abort(interval) == 0);
    CHECK(freebs_read(volume, back, 4, 100) == 0 && memcmp(back, "here", 4) == 0);

    /* One that is too large is aborted, and errno says why. */
    char *large = calloc(1, FREEBS_INTERVAL_BYTES_MAX);
    CHECK(large != NULL && (interval = freebs_begin(volume)) != NULL);
    CHECK(freebs_interval_write(interval, large, FREEBS_INTERVAL_BYTES_MAX, 1) == 0);
    CHECK(freebs_interval_write(interval, "x", 1, 100) == 0);
    memset(large, 'x', FREEBS_INTERVAL_BYTES_MAX);
    CHECK(freebs_interval_write(interval, large, FREEBS_INTERVAL_BYTES_MAX, 1) == 0);
    CHECK(freebs_commit(interval, NULL, NULL) == -ECANCELED && errno == EINVAL);
    CHECK(freebs_read(volume, back, 4, 100) == 0 && memcmp(back, "here", 4) == 0);
    free(large);
}

/* Mistakes are answered, not punished. */
static void mistakes(struct freebs_cluster *cluster, struct freebs_volume *volume) {
    char back[8];
    uint64_t size = freebs_size(volume);
    CHECK(freebs_read(NULL, back, 8, 0) == -EINVAL && errno == EINVAL);
    CHECK(freebs_read(volume, NULL, 8, 0) == -EINVAL);
    CHECK(freebs_read(volume, back, 8, size - 4) == -EINVAL);
    CHECK(freebs_write(volume, back, UINT64_MAX, 0) == -EINVAL);
    CHECK(freebs_size(NULL) == FREEBS_ERROR);
    CHECK(freebs_attach(cluster, "there is none") == NULL && errno == ENOENT);
    CHECK(freebs_begin(NULL) == NULL && errno == EINVAL);
    CHECK(freebs_commit(NULL, NULL, NULL) == -EINVAL);
    CHECK(freebs_connect(NULL) == NULL && errno == EINVAL);
    CHECK(strlen(freebs_error()) > 0);
}

int main(int argc, char **argv) {
    char back[8];
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: %s ADDRESSES VOLUME [SNAPSHOT]\n", argv[0]);
        return 2;
    }
    CHECK(freebs_library_version() >> 16 == FREEBS_MAJOR);
    struct freebs_cluster *cluster = freebs_connect(argv[1]);
    CHECK(cluster != NULL);
    struct freebs_volume *volume = freebs_attach(cluster, argv[2]);
    CHECK(volume != NULL);
    CHECK(freebs_size(volume) >= 8 * MIB && freebs_size(volume) != FREEBS_ERROR);

    CHECK(freebs_trim(volume, 8 * MIB, 0) == 0);
    CHECK(freebs_write(volume, "hello", 5, 4094) == 0);
    CHECK(freebs_read(volume, back, 8, 4093) == 0 && memcmp(back, "\0hello\0", 8) == 0);
    CHECK(freebs_flush(volume) == 0);
    intervals(volume);
    threads(volume);
    mistakes(cluster, volume);
    if (argc == 4) {
        struct freebs_volume *past = freebs_open_snapshot(cluster, argv[2], argv[3]);
        CHECK(past != NULL && freebs_read(past, back, 8, 0) == 0);
        CHECK(freebs_write(past, back, 8, 0) == -EINVAL);
        CHECK(freebs_detach(past) == 0);
    }

    /* Another program of a name of its own; the volume is free once it was given back. */
    struct freebs_cluster *other = freebs_connect_as(argv[1], "tour-of-libfreebs");
    CHECK(other != NULL);
    CHECK(freebs_attach(other, argv[2]) == NULL && errno == EBUSY);
    CHECK(freebs_detach(volume) == 0);
    CHECK(freebs_read(volume, back, 8, 0) == -EINVAL);
    CHECK((volume = freebs_attach(other, argv[2])) != NULL);
    CHECK(freebs_read(volume, back, 4, 100) == 0 && memcmp(back, "here", 4) == 0);
    CHECK(freebs_detach(volume) == 0 && freebs_detach(NULL) == 0);
    CHECK(freebs_close(other) == 0);
    CHECK(freebs_close(cluster) == 0 && freebs_close(NULL) == 0);
    printf("all is well\n");
    return 0;
}
