/* Damage to files, hundreds of seeded ways of it, and what a parser has to do with them: it says
 * STATUS_OK, or what is wrong, keeps no memory, and takes no time. With the sanitizers of CI this
 * is a small fuzzer that everybody runs; TTV_FUZZ_SEED=N takes other damage, TTV_FUZZ_TIMES=N more
 * of it. */
#ifndef TTV_TESTS_MUTATIONS_H
#define TTV_TESTS_MUTATIONS_H

#include "data_tar.h"

#include <sys/mman.h>

#include "core/clock.h"
#include "core/rng.h"

#define SLOW_SECONDS 5.0

/* Frees what it opened. `data` is NUL-terminated one past `size` where `text` says so. */
typedef struct Target {
    const char *name;
    Status (*parse)(const unsigned char *data, size_t size);
    bool text;
    int rounds;
} Target;

typedef struct Bytes {
    unsigned char *data;
    size_t size;
} Bytes;

static uint64_t seed = 1;
static int times = 1;

static volatile unsigned sink; /* what is read of a result */

static inline void touch(const unsigned char *data, size_t size) {
    for (size_t i = 0; i < size; i++) sink += data[i];
}

/* ---- damage ----------------------------------------------------------------------------- */

static const char *const numbers[] = {
    "0",   "-1",  "1e400",      "99999999999999999999", "4294967296",
    "NaN", "0.5", "2147483648", "9007199254740993",     "1"};

static inline Bytes copy_of(const Bytes *from, size_t room) {
    Bytes b = {malloc(from->size + room + 1), from->size};
    assert_non_null(b.data);
    memcpy(b.data, from->data, from->size);
    return b;
}

/* Replaces `gone` bytes at `at` by `count` others. */
static inline void splice(Bytes *b, size_t at, size_t gone, const void *with, size_t count) {
    memmove(b->data + at + count, b->data + at + gone, b->size - at - gone);
    memcpy(b->data + at, with, count);
    b->size = b->size - gone + count;
}

static inline void replace_number(Bytes *b, Rng *r) {
    const char *with = numbers[rng_below(r, sizeof numbers / sizeof *numbers)];
    const size_t start = rng_below(r, b->size);
    for (size_t i = start; i < b->size; i++) {
        size_t n = 0;
        while (i + n < b->size && b->data[i + n] >= '0' && b->data[i + n] <= '9') n++;
        if (n == 0) continue;
        splice(b, i, n, with, strlen(with));
        return;
    }
}

/* One of six ways; most files keep their shape, so that damage gets past the first check. */
static inline Bytes damaged(const Bytes *whole, Rng *r) {
    unsigned char junk[64];
    Bytes b = copy_of(whole, sizeof junk);
    const size_t at = rng_below(r, b.size), run = 1 + rng_below(r, sizeof junk);
    const size_t inside = run < b.size - at ? run : b.size - at;
    for (size_t i = 0; i < sizeof junk; i++) junk[i] = (unsigned char)rng_below(r, 256);
    switch (rng_below(r, 6)) {
    case 0: /* a few bits */
        for (uint64_t i = rng_below(r, 6) + 1; i > 0; i--) {
            const size_t place = rng_below(r, b.size);
            b.data[place] ^= (unsigned char)(1u << rng_below(r, 8));
        }
        break;
    case 1: /* the rest is missing */
        b.size = at;
        break;
    case 2:
        splice(&b, at, inside, junk, 0);
        break;
    case 3:
        splice(&b, at, 0, junk, run);
        break;
    case 4: /* a piece of itself where another belongs */
        memmove(b.data + at, b.data + rng_below(r, b.size - inside + 1), inside);
        break;
    default:
        replace_number(&b, r);
    }
    return b;
}

/* ---- one target, one file --------------------------------------------------------------- */

/* How often it was refused. */
static inline int attack(const Target *t, const Bytes *whole, uint64_t stream) {
    int refused = 0;
    for (int i = 0; i < t->rounds * times; i++) {
        Rng r = rng_stream(seed, RNG_TEST, stream, (uint64_t)i);
        Bytes b = damaged(whole, &r);
        /* Memory that ends where the file does, so that a sanitizer sees one byte too many. */
        unsigned char *exact = malloc(b.size + t->text + (b.size + t->text == 0));
        memcpy(exact, b.data, b.size);
        if (t->text) exact[b.size] = '\0';
        const int64_t live = mem_live();
        const double begun = seconds_now();
        const Status s = t->parse(exact, b.size);
        if (s != STATUS_OK && s != STATUS_DATA && s != STATUS_USAGE)
            fail_msg("%s, damage %d: %s: %s", t->name, i, status_name(s), status_message());
        if (s != STATUS_OK && !*status_message()) fail_msg("%s, damage %d: no message", t->name, i);
        if (mem_live() != live) fail_msg("%s, damage %d: memory is kept", t->name, i);
        if (seconds_now() - begun > SLOW_SECONDS) fail_msg("%s, damage %d: slow", t->name, i);
        refused += s != STATUS_OK;
        free(exact);
        free(b.data);
    }
    return refused;
}

/* The whole file is taken, most damaged ones are not. */
static inline void attack_file(const Target *t, const void *data, size_t size, uint64_t stream) {
    const Bytes whole = {(unsigned char *)(uintptr_t)data, size};
    Bytes exact = copy_of(&whole, 0);
    exact.data[size] = '\0';
    assert_ok(t->parse(exact.data, size));
    free(exact.data);
    const int refused = attack(t, &whole, stream);
    print_message("%s: %d of %d refused\n", t->name, refused, t->rounds * times);
    assert_true(refused > t->rounds * times / 5);
}

static inline void attack_text(const Target *t, const char *text, uint64_t stream) {
    attack_file(t, text, strlen(text), stream);
}

static inline int number_from(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    return text != NULL && atoi(text) > 0 ? atoi(text) : otherwise;
}

static inline void mutations_begin(void) {
    seed = (uint64_t)number_from("TTV_FUZZ_SEED", 1);
    times = number_from("TTV_FUZZ_TIMES", 1);
}

#endif
