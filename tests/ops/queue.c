#include "queue.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* The number in the file is replaced while its lock is held. */
static int take(int file, int count, bool rest) {
    int next = 0;
    if (lockf(file, F_LOCK, 0) != 0) return -1;
    const ssize_t got = pread(file, &next, sizeof next, 0);
    if (got != 0 && got != (ssize_t)sizeof next) return -1;
    if (next >= count) return count;
    const int then = rest ? count : next + 1;
    return pwrite(file, &then, sizeof then, 0) == (ssize_t)sizeof then ? next : -1;
}

int queue_take(const char *path, int count, bool rest) {
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return -1;
    const int next = take(file, count, rest);
    close(file); /* and with it the lock */
    return next;
}
