/* Moves a process's wall clock by as many seconds as stand in the file WALLSHIM_FILE, which is read
   again every 5 ms. All other clocks stay as they are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset_s(void) {
    static __thread long read_ms = -1, known_s = 0;
    const char *path = getenv("WALLSHIM_FILE");
    struct timespec now;
    if (!path)
        return 0;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    long now_ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (read_ms < 0 || now_ms - read_ms >= 5) {
        char text[32];
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
        if (file >= 0)
            close(file);
        if (length > 0) {
            text[length] = 0;
            known_s = strtol(text, NULL, 10);
        }
        read_ms = now_ms;
    }
    return known_s;
}

int clock_gettime(clockid_t clock, struct timespec *value) {
    int failed = syscall(SYS_clock_gettime, clock, value);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        value->tv_sec += offset_s();
    return failed;
}

int gettimeofday(struct timeval *value, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    value->tv_sec = now.tv_sec;
    value->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *value) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (value)
        *value = now.tv_sec;
    return now.tv_sec;
}
