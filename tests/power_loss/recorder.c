/* Records the disk operations of a process below one folder, in order; `disk.py` computes what a power loss leaves.

   Preloaded (LD_PRELOAD), and idle until `recorder_begin` is called in a forked process.

   A record is a header, a name and data; see `disk.py`. A lock makes each call and its record atomic, so the log has the
   order of the calls. A sync has one record before and one after it, and does not wait for the real disk. Calls that
   could change a file and are not supported end the process, so that none is missed. Writes through mmap are not
   recorded: among SQLite's files only the shared memory has them, and it holds no data. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST_DESCRIPTORS 65536
#define EXPORT __attribute__((visibility("default")))

struct header {
    uint32_t kind, name_bytes, data_bytes, padding;
    uint64_t inode;
    int64_t at;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t inode_of[MOST_DESCRIPTORS]; /* for descriptors of files below the root; 0 for others */
static char root[PATH_MAX];
static size_t root_bytes;
static int log_descriptor = -1;
static long records, kill_at, syncs, kill_sync, fail_sync;

/* Starts to record operations below `folder` to `log`. The process kills itself after record `killing`, and before sync
   `killing_sync` is done; sync `failing` fails with EIO and writes nothing. 0 for never. */
EXPORT int recorder_begin(const char *folder, const char *log, long killing, long killing_sync, long failing) {
    root_bytes = strlen(folder);
    if (root_bytes >= sizeof root)
        return -1;
    strcpy(root, folder);
    kill_at = killing;
    kill_sync = killing_sync;
    fail_sync = failing;
    log_descriptor = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    return log_descriptor < 0 ? -1 : 0;
}

static void give_up(const char *what) {
    char text[256];
    int size = snprintf(text, sizeof text, "recorder: %s is not recorded\n", what);
    syscall(SYS_write, 2, text, size);
    abort();
}

/* With the lock held. */
static void record(char kind, uint64_t inode, int64_t at, const char *name, const void *data, size_t data_bytes) {
    struct header header = {kind, name ? strlen(name) : 0, data_bytes, 0, inode, at};
    struct iovec parts[3] = {{&header, sizeof header}, {(void *)name, header.name_bytes}, {(void *)data, data_bytes}};
    if (syscall(SYS_writev, log_descriptor, parts, 3) != (long)(sizeof header + header.name_bytes + data_bytes))
        give_up("a log that cannot be written");
    if (++records == kill_at)
        syscall(SYS_kill, getpid(), SIGKILL);
}

/* The absolute path of a name; whether it is below the root. */
static int below(int folder, const char *name, char *path) {
    if (log_descriptor < 0)
        return 0;
    if (name[0] == '/') {
        if (strlen(name) >= PATH_MAX)
            return 0;
        strcpy(path, name);
    } else {
        char link[64];
        ssize_t size;
        snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
        size = readlink(link, path, PATH_MAX - 2);
        if (size < 0 || size + 2 + strlen(name) > PATH_MAX)
            return 0;
        path[size] = '/';
        strcpy(path + size + 1, name);
    }
    return !strncmp(path, root, root_bytes) && (path[root_bytes] == '/' || !path[root_bytes]);
}

/* The inode of a descriptor below the root; 0 for others, also where the C library closed it unseen. */
static uint64_t recorded(int descriptor) {
    struct stat found;
    if (log_descriptor < 0 || descriptor < 0 || descriptor >= MOST_DESCRIPTORS || !inode_of[descriptor])
        return 0;
    if (fstat(descriptor, &found) || found.st_ino != inode_of[descriptor])
        return inode_of[descriptor] = 0;
    return found.st_ino;
}

static int open_recorded(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat found;
    int descriptor, there;
    if (!below(folder, name, path)) {
        descriptor = syscall(SYS_openat, folder, name, flags, mode);
        if (descriptor >= 0 && descriptor < MOST_DESCRIPTORS)
            inode_of[descriptor] = 0;
        return descriptor;
    }
    if ((flags & O_TMPFILE) == O_TMPFILE)
        give_up("O_TMPFILE");
    pthread_mutex_lock(&lock);
    there = !fstatat(AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW);
    descriptor = syscall(SYS_openat, folder, name, flags, mode);
    if (descriptor >= MOST_DESCRIPTORS)
        give_up("so many descriptors");
    if (descriptor >= 0 && !fstat(descriptor, &found)) {
        inode_of[descriptor] = found.st_ino;
        if (!there)
            record('C', found.st_ino, 0, path, NULL, 0);
        else if (flags & O_TRUNC)
            record('T', found.st_ino, 0, NULL, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return descriptor;
}

#define OPEN(NAME)                                                                                                     \
    EXPORT int NAME(const char *name, int flags, ...) {                                                                \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                        \
        va_end(more);                                                                                                  \
        return open_recorded(AT_FDCWD, name, flags, mode);                                                             \
    }
#define OPENAT(NAME)                                                                                                   \
    EXPORT int NAME(int folder, const char *name, int flags, ...) {                                                    \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                        \
        va_end(more);                                                                                                  \
        return open_recorded(folder, name, flags, mode);                                                               \
    }
#define CREAT(NAME)                                                                                                    \
    EXPORT int NAME(const char *name, mode_t mode) {                                                                   \
        return open_recorded(AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC, mode);                                      \
    }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64) CREAT(creat) CREAT(creat64)
OPEN(__open_2) OPEN(__open64_2) OPENAT(__openat_2) OPENAT(__openat64_2)

EXPORT int close(int descriptor) {
    if (descriptor >= 0 && descriptor < MOST_DESCRIPTORS)
        inode_of[descriptor] = 0;
    return syscall(SYS_close, descriptor);
}

/* at: -1 for where the descriptor stands. */
static ssize_t write_recorded(int descriptor, const struct iovec *parts, int count, off_t at) {
    ssize_t done, left;
    uint64_t inode;
    pthread_mutex_lock(&lock);
    inode = recorded(descriptor);
    if (!inode) /* a pipe or a socket, which may take its time */
        pthread_mutex_unlock(&lock);
    if (at < 0)
        done = syscall(SYS_writev, descriptor, parts, count);
    else
        done = syscall(SYS_pwritev, descriptor, parts, count, at, 0);
    if (!inode)
        return done;
    if (done > 0) {
        if (at < 0)
            at = lseek(descriptor, 0, SEEK_CUR) - done;
        for (left = done; left > 0; parts++) {
            size_t some = (size_t)left < parts->iov_len ? (size_t)left : parts->iov_len;
            record('W', inode, at, NULL, parts->iov_base, some);
            at += some;
            left -= some;
        }
    }
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT ssize_t write(int descriptor, const void *data, size_t size) {
    struct iovec part = {(void *)data, size};
    return write_recorded(descriptor, &part, 1, -1);
}
EXPORT ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    return write_recorded(descriptor, parts, count, -1);
}
#define PWRITE(NAME)                                                                                                   \
    EXPORT ssize_t NAME(int descriptor, const void *data, size_t size, off_t at) {                                     \
        struct iovec part = {(void *)data, size};                                                                      \
        return write_recorded(descriptor, &part, 1, at);                                                               \
    }
#define PWRITEV(NAME)                                                                                                  \
    EXPORT ssize_t NAME(int descriptor, const struct iovec *parts, int count, off_t at) {                              \
        return write_recorded(descriptor, parts, count, at);                                                           \
    }
#define PWRITEV2(NAME)                                                                                                 \
    EXPORT ssize_t NAME(int descriptor, const struct iovec *parts, int count, off_t at, int flags) {                   \
        if (recorded(descriptor))                                                                                      \
            give_up("pwritev2");                                                                                       \
        return syscall(SYS_pwritev2, descriptor, parts, count, at, 0, flags);                                          \
    }
PWRITE(pwrite) PWRITE(pwrite64) PWRITEV(pwritev) PWRITEV(pwritev64) PWRITEV2(pwritev2) PWRITEV2(pwritev64v2)

#define TRUNCATE(NAME)                                                                                                 \
    EXPORT int NAME(int descriptor, off_t size) {                                                                      \
        pthread_mutex_lock(&lock);                                                                                     \
        int done = syscall(SYS_ftruncate, descriptor, size);                                                           \
        uint64_t inode = recorded(descriptor);                                                                         \
        if (!done && inode)                                                                                            \
            record('T', inode, size, NULL, NULL, 0);                                                                   \
        pthread_mutex_unlock(&lock);                                                                                   \
        return done;                                                                                                   \
    }
TRUNCATE(ftruncate) TRUNCATE(ftruncate64)

static int sync_recorded(int descriptor) {
    uint64_t inode;
    int fails = 0;
    pthread_mutex_lock(&lock);
    inode = recorded(descriptor);
    if (inode) {
        record('s', inode, 0, NULL, NULL, 0);
        if (++syncs == kill_sync)
            syscall(SYS_kill, getpid(), SIGKILL);
        fails = syncs == fail_sync;
        pthread_mutex_unlock(&lock);
        sched_yield(); /* others may write meanwhile */
        pthread_mutex_lock(&lock);
        record(fails ? 'F' : 'S', inode, 0, NULL, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    errno = EIO;
    return fails ? -1 : 0;
}
EXPORT int fsync(int descriptor) { return sync_recorded(descriptor); }
EXPORT int fdatasync(int descriptor) { return sync_recorded(descriptor); }

static int rename_recorded(int from, const char *old, int to, const char *new, unsigned flags) {
    char here[PATH_MAX], there[PATH_MAX];
    int ours = below(from, old, here), done;
    if (below(to, new, there) != ours || (ours && flags))
        give_up("such a rename");
    pthread_mutex_lock(&lock);
    done = syscall(SYS_renameat2, from, old, to, new, flags);
    if (ours && !done)
        record('R', 0, 0, here, there, strlen(there));
    pthread_mutex_unlock(&lock);
    return done;
}
EXPORT int rename(const char *old, const char *new) { return rename_recorded(AT_FDCWD, old, AT_FDCWD, new, 0); }
EXPORT int renameat(int from, const char *old, int to, const char *new) {
    return rename_recorded(from, old, to, new, 0);
}
EXPORT int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return rename_recorded(from, old, to, new, flags);
}

static int link_recorded(int from, const char *old, int to, const char *new, int flags) {
    char here[PATH_MAX], there[PATH_MAX];
    int ours = below(from, old, here), done;
    if (below(to, new, there) != ours)
        give_up("such a link");
    pthread_mutex_lock(&lock);
    done = syscall(SYS_linkat, from, old, to, new, flags);
    if (ours && !done)
        record('L', 0, 0, here, there, strlen(there));
    pthread_mutex_unlock(&lock);
    return done;
}
EXPORT int link(const char *old, const char *new) { return link_recorded(AT_FDCWD, old, AT_FDCWD, new, 0); }
EXPORT int linkat(int from, const char *old, int to, const char *new, int flags) {
    return link_recorded(from, old, to, new, flags);
}

static int remove_recorded(int folder, const char *name, int flags) {
    char path[PATH_MAX];
    int ours = below(folder, name, path), done;
    pthread_mutex_lock(&lock);
    done = syscall(SYS_unlinkat, folder, name, flags);
    if (ours && !done)
        record('U', 0, 0, path, NULL, 0);
    pthread_mutex_unlock(&lock);
    return done;
}
EXPORT int unlink(const char *name) { return remove_recorded(AT_FDCWD, name, 0); }
EXPORT int unlinkat(int folder, const char *name, int flags) { return remove_recorded(folder, name, flags); }
EXPORT int rmdir(const char *name) { return remove_recorded(AT_FDCWD, name, AT_REMOVEDIR); }

static int make_recorded(int folder, const char *name, mode_t mode) {
    char path[PATH_MAX];
    struct stat found;
    int ours = below(folder, name, path), done;
    pthread_mutex_lock(&lock);
    done = syscall(SYS_mkdirat, folder, name, mode);
    if (ours && !done && !stat(path, &found))
        record('M', found.st_ino, 0, path, NULL, 0);
    pthread_mutex_unlock(&lock);
    return done;
}
EXPORT int mkdir(const char *name, mode_t mode) { return make_recorded(AT_FDCWD, name, mode); }
EXPORT int mkdirat(int folder, const char *name, mode_t mode) { return make_recorded(folder, name, mode); }

/* What would change files, or make them durable, in ways that are not recorded. */
#define NOT_BY_DESCRIPTOR(TYPE, NAME, CALL, DESCRIPTOR, PARAMETERS, ...)                                               \
    EXPORT TYPE NAME PARAMETERS {                                                                                      \
        if (recorded(DESCRIPTOR))                                                                                      \
            give_up(#NAME);                                                                                            \
        return syscall(CALL, __VA_ARGS__);                                                                             \
    }
NOT_BY_DESCRIPTOR(ssize_t, copy_file_range, SYS_copy_file_range, out,
                  (int in, off_t *in_at, int out, off_t *out_at, size_t size, unsigned flags),
                  in, in_at, out, out_at, size, flags)
NOT_BY_DESCRIPTOR(ssize_t, sendfile, SYS_sendfile, out, (int out, int in, off_t *at, size_t size), out, in, at, size)
NOT_BY_DESCRIPTOR(ssize_t, sendfile64, SYS_sendfile, out, (int out, int in, off_t *at, size_t size), out, in, at, size)
NOT_BY_DESCRIPTOR(ssize_t, splice, SYS_splice, out,
                  (int in, off_t *in_at, int out, off_t *out_at, size_t size, unsigned flags),
                  in, in_at, out, out_at, size, flags)
NOT_BY_DESCRIPTOR(int, fallocate, SYS_fallocate, file, (int file, int mode, off_t at, off_t size),
                  file, mode, at, size)
NOT_BY_DESCRIPTOR(int, fallocate64, SYS_fallocate, file, (int file, int mode, off_t at, off_t size),
                  file, mode, at, size)
NOT_BY_DESCRIPTOR(int, sync_file_range, SYS_sync_file_range, file, (int file, off_t at, off_t size, unsigned flags),
                  file, at, size, flags)
NOT_BY_DESCRIPTOR(int, syncfs, SYS_syncfs, file, (int file), file)
#define NOT_BY_PATH(NAME, CALL, PATH, PARAMETERS, ...)                                                                 \
    EXPORT int NAME PARAMETERS {                                                                                       \
        char path[PATH_MAX];                                                                                           \
        if (below(AT_FDCWD, PATH, path))                                                                               \
            give_up(#NAME);                                                                                            \
        return syscall(CALL, __VA_ARGS__);                                                                             \
    }
NOT_BY_PATH(truncate, SYS_truncate, name, (const char *name, off_t size), name, size)
NOT_BY_PATH(truncate64, SYS_truncate, name, (const char *name, off_t size), name, size)
NOT_BY_PATH(symlink, SYS_symlinkat, new, (const char *old, const char *new), old, AT_FDCWD, new)
EXPORT int posix_fallocate(int file, off_t at, off_t size) { return fallocate(file, 0, at, size) ? errno : 0; }
EXPORT int posix_fallocate64(int file, off_t at, off_t size) { return fallocate(file, 0, at, size) ? errno : 0; }
