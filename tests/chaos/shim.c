/* A disk that fails on purpose, for `tests.chaos`: loaded before a coordinator (LD_PRELOAD), it refuses writes to
 * regular files while it is told to, and ends the process in the middle of the n-th of them when a fuse is set.
 *
 * The words in the shared file named by MIEN_CHAOS_CONTROL: [0] errno of a refused write, 0: none is refused;
 * [1] fuse: how many more writes until the process dies, 0: it does not; [2] whether it dies after the write or before
 * it; [3] how many deaths there were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { REFUSAL, FUSE, AFTER, DEATHS, WORDS };

static volatile int *control;

__attribute__((constructor)) static void open_control(void) {
    const char *path = getenv("MIEN_CHAOS_CONTROL");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *shared = mmap(NULL, WORDS * sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared != MAP_FAILED)
        control = shared;
}

static void die(void) {
    __sync_fetch_and_add(&control[DEATHS], 1);
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Returns whether this write is the last one. */
static int burns_down(void) {
    for (int left = control[FUSE]; left > 0; left = control[FUSE])
        if (__sync_bool_compare_and_swap(&control[FUSE], left, left - 1))
            return left == 1;
    return 0;
}

static int concerns(int file) {
    struct stat found;
    return control && file != 1 && file != 2 && fstat(file, &found) == 0 && S_ISREG(found.st_mode);
}

#define GUARDED(concerned, call)                                                                                       \
    do {                                                                                                               \
        int last = 0;                                                                                                  \
        if (concerned) {                                                                                               \
            if (control[REFUSAL]) {                                                                                    \
                errno = control[REFUSAL];                                                                              \
                return -1;                                                                                             \
            }                                                                                                          \
            last = burns_down();                                                                                       \
            if (last && !control[AFTER])                                                                               \
                die();                                                                                                 \
        }                                                                                                              \
        __typeof__(call) answer = (call);                                                                              \
        if (last)                                                                                                      \
            die();                                                                                                     \
        return answer;                                                                                                 \
    } while (0)

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *data, size_t size) { GUARDED(concerns(file), REAL(write)(file, data, size)); }

ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
    GUARDED(concerns(file), REAL(pwrite)(file, data, size, offset));
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
    GUARDED(concerns(file), REAL(pwrite64)(file, data, size, offset));
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    GUARDED(concerns(file), REAL(writev)(file, parts, count));
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t offset) {
    GUARDED(concerns(file), REAL(pwritev)(file, parts, count, offset));
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t offset) {
    GUARDED(concerns(file), REAL(pwritev64)(file, parts, count, offset));
}

ssize_t pwritev2(int file, const struct iovec *parts, int count, off_t offset, int flags) {
    GUARDED(concerns(file), REAL(pwritev2)(file, parts, count, offset, flags));
}

ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off64_t offset, int flags) {
    GUARDED(concerns(file), REAL(pwritev64v2)(file, parts, count, offset, flags));
}

int ftruncate(int file, off_t size) { GUARDED(concerns(file), REAL(ftruncate)(file, size)); }

int ftruncate64(int file, off64_t size) { GUARDED(concerns(file), REAL(ftruncate64)(file, size)); }

int fsync(int file) { GUARDED(concerns(file), REAL(fsync)(file)); }

int fdatasync(int file) { GUARDED(concerns(file), REAL(fdatasync)(file)); }

int rename(const char *from, const char *to) { GUARDED(control != NULL, REAL(rename)(from, to)); }
