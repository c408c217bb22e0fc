/* A queue that several processes take numbers from, so that none waits while another has much left.
 */
#ifndef TTV_TESTS_OPS_QUEUE_H
#define TTV_TESTS_OPS_QUEUE_H

#include <stdbool.h>

/* The next number below `count`, which every process gives alike; `count` when there is none, -1
 * when the file cannot be used (errno). `path`: a file that holds what comes next; made when it is
 * missing. `rest`: takes all that are left. */
int queue_take(const char *path, int count, bool rest);

#endif
