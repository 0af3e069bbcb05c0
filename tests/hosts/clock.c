/* Preloaded: the time of day is CLOCK_OFFSET_S seconds off for this process and its children. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset(void) {
    const char *text = getenv("CLOCK_OFFSET_S");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *when) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, when);
    if (result == 0 && clock == CLOCK_REALTIME) when->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *restrict when, void *restrict zone) {
    struct timespec precise;
    int result = clock_gettime(CLOCK_REALTIME, &precise);
    when->tv_sec = precise.tv_sec;
    when->tv_usec = precise.tv_nsec / 1000;
    return result;
}

time_t time(time_t *when) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (when) *when = precise.tv_sec;
    return precise.tv_sec;
}
