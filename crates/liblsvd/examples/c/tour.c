/*
 * A tour of liblsvd: every function once. Build and run:
 *
 *     cc -o tour tour.c $(pkg-config --cflags --libs lsvd) && ./tour /tmp
 *
 * Makes three disks in the directory that it is given. Exit status 0 if all is as it should be.
 */
#include <lsvd.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096, THREADS = 4, ROUNDS = 50 };
#define MIB ((uint64_t)1 << 20)

static void check(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "failed: %s: %s\n", what, error_lsvd());
        exit(1);
    }
}

#define CHECK(x) check((x), #x)

struct job {
    struct lsvd_disk *disk;
    int number;
};

/* Each thread writes durably in blocks of its own. */
static void *writer(void *arg) {
    struct job *job = arg;
    char block[BLOCK], back[BLOCK];
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t offset = MIB + (uint64_t)(i * THREADS + job->number) * BLOCK;
        memset(block, 'a' + job->number, sizeof block);
        CHECK(write_durable_lsvd(job->disk, block, sizeof block, offset) == 0);
        CHECK(read_lsvd(job->disk, back, sizeof back, offset, LSVD_CURRENT) == 0);
        CHECK(memcmp(block, back, sizeof block) == 0);
    }
    return NULL;
}

static void threads(struct lsvd_disk *disk) {
    pthread_t t[THREADS];
    struct job jobs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){disk, i};
        CHECK(pthread_create(&t[i], NULL, writer, &jobs[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* Everything that one disk has is read and compared with another one. */
static void same(struct lsvd_disk *a, struct lsvd_disk *b) {
    uint64_t size = get_size_lsvd(a);
    CHECK(get_size_lsvd(b) == size);
    CHECK(get_version_lsvd(a) == get_version_lsvd(b));
    char *left = malloc(MIB), *right = malloc(MIB);
    CHECK(left != NULL && right != NULL);
    for (uint64_t at = 0; at < size; at += MIB) {
        CHECK(read_lsvd(a, left, MIB, at, LSVD_CURRENT) == 0);
        CHECK(read_lsvd(b, right, MIB, at, get_version_lsvd(b)) == 0);
        CHECK(memcmp(left, right, MIB) == 0);
    }
    free(left);
    free(right);
}

int main(int argc, char **argv) {
    char one[4096], two[4096], three[4096];
    char buf[2 * BLOCK], back[2 * BLOCK];
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    snprintf(one, sizeof one, "%s/one.lsvd", argv[1]);
    snprintf(two, sizeof two, "%s/two.lsvd", argv[1]);
    snprintf(three, sizeof three, "%s/three.lsvd", argv[1]);
    CHECK(library_version_lsvd() >> 16 == LSVD_MAJOR);

    /* A disk, some writes, and what they read as. */
    struct lsvd_disk *disk = create_lsvd(one, 16 * MIB);
    CHECK(disk != NULL);
    CHECK(get_version_lsvd(disk) == 0);
    memset(buf, 'x', sizeof buf);
    CHECK(write_lsvd(disk, buf, sizeof buf, 0, LSVD_NEXT) == 0);
    CHECK(write_lsvd(disk, buf, 512, 1024, 2) == 0);
    CHECK(write_lsvd(disk, buf, 512, 1024, 2) == -EINVAL && errno == EINVAL);
    CHECK(get_version_lsvd(disk) == 2);
    CHECK(zero_lsvd(disk, BLOCK, 0) == 0);
    CHECK(read_lsvd(disk, back, sizeof back, 0, LSVD_CURRENT) == 0);
    memset(buf, 0, BLOCK);
    CHECK(memcmp(buf, back, sizeof buf) == 0);
    CHECK(read_lsvd(disk, back, sizeof back, 0, 1) == -ENOENT);
    CHECK(strlen(error_lsvd()) > 0);
    CHECK(fsync_lsvd(disk) == 0);
    threads(disk);

    /* Mistakes are answered, not punished. */
    CHECK(read_lsvd(NULL, back, 512, 0, LSVD_CURRENT) == -EINVAL);
    CHECK(read_lsvd(disk, NULL, 512, 0, LSVD_CURRENT) == -EINVAL);
    CHECK(write_lsvd(disk, buf, 100, 0, LSVD_NEXT) == -EINVAL);
    CHECK(write_lsvd(disk, buf, UINT64_MAX, 0, LSVD_NEXT) == -EINVAL);
    CHECK(open_lsvd("/nowhere/at/all") == NULL && errno == ENOENT);
    CHECK(create_lsvd(NULL, MIB) == NULL && errno == EINVAL);
    CHECK(get_version_lsvd(NULL) == LSVD_ERROR);

    /* The same disk after a close. */
    uint64_t version = get_version_lsvd(disk);
    CHECK(close_lsvd(disk) == 0);
    CHECK((disk = open_lsvd(one)) != NULL);
    CHECK(get_version_lsvd(disk) == version);

    /* A copy, by all writes since the beginning, then kept up piece by piece. */
    size_t size;
    struct lsvd_disk *copy = create_log_lsvd(two, 16 * MIB, 256 * MIB);
    CHECK(copy != NULL);
    char *writes = get_writes_lsvd(disk, 0, &size);
    CHECK(writes != NULL && size > 0);
    CHECK(put_writes_lsvd(copy, 0, writes, size) == 0);
    CHECK(put_writes_lsvd(copy, 7, writes, size) == -EINVAL);
    free_lsvd(writes);
    same(disk, copy);
    CHECK(trim_lsvd(disk, 64 * 1024, MIB) == 0);
    struct lsvd_writes *more = writes_lsvd(disk, get_version_lsvd(copy));
    CHECK(more != NULL);
    while ((writes = next_writes_lsvd(more, &size)) != NULL) {
        CHECK(put_writes_lsvd(copy, LSVD_ANY, writes, size) == 0);
        free_lsvd(writes);
    }
    CHECK(errno == 0 && size == 0);
    close_writes_lsvd(more);
    same(disk, copy);
    CHECK((writes = get_writes_lsvd(disk, get_version_lsvd(copy), &size)) != NULL && size == 0);
    free_lsvd(writes);

    /* A file with nothing superseded in it: from the open disk, and from a closed one. */
    CHECK(cleanup_disk_lsvd(disk, three) == 0);
    struct lsvd_disk *clean = open_lsvd(three);
    CHECK(clean != NULL);
    same(disk, clean);
    CHECK(close_lsvd(clean) == 0);
    CHECK(remove(three) == 0);
    CHECK(close_lsvd(copy) == 0);
    CHECK(cleanup_lsvd(two, three) == 0);
    CHECK((clean = open_lsvd(three)) != NULL);
    same(disk, clean);
    CHECK(close_lsvd(clean) == 0);
    CHECK(close_lsvd(disk) == 0);
    CHECK(close_lsvd(NULL) == 0);
    remove(one);
    remove(two);
    remove(three);
    printf("all is well at version %llu\n", (unsigned long long)version);
    return 0;
}
