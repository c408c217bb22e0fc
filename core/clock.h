/* The clock that durations and deadlines are measured with: nobody sets it back. */
#ifndef TTV_CORE_CLOCK_H
#define TTV_CORE_CLOCK_H

/* Seconds since an arbitrary moment, the same for all processes of a machine. Threads: any. Safe in
 * a signal handler. */
double seconds_now(void);

#endif
