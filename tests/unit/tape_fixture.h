/* A tape on the CPU, for tests of single ops. The including file has cmocka.h already. */
#ifndef TTV_TESTS_UNIT_TAPE_FIXTURE_H
#define TTV_TESTS_UNIT_TAPE_FIXTURE_H

#include <stdlib.h>

#include "nn/tape.h"

static inline void check_ok(Status s) {
    if (s != STATUS_OK) print_error("%s: %s\n", status_name(s), status_message());
    assert_int_equal(s, STATUS_OK);
}

typedef struct Bench {
    Device *d;
    Tape *t;
} Bench;

static inline int bench_open(void **state) {
    Bench *b = calloc(1, sizeof *b);
    check_ok(device_open("cpu", &b->d));
    check_ok(tape_new(b->d, &b->t));
    *state = b;
    return 0;
}

static inline int bench_close(void **state) {
    Bench *b = *state;
    tape_free(b->t);
    device_close(b->d);
    free(b);
    return 0;
}

#endif
