/* Steps as recorded graphs and batches fetched ahead: the same bits as call by call. On the CPU
 * with recordings that fail, on a card with true ones (skipped without one; CPU tests still count).
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/log.h"
#include "kernels/backend.h"
#include "nn_train_fixture.h"

typedef struct Plan {
    const char *device;
    int64_t batch, accumulate, nan_sample;
    bool no_graphs;
    int fetch_ahead;
    const DeviceMemory *memory; /* instead of the device's own; NULL: its own */
    float skip_norm;
} Plan;

static Snapshot train_plan(Plan p, Heard *h) {
    char *folder = folder_new();
    Device *d;
    check_ok(device_open(p.device, &d));
    if (p.memory) d->memory = p.memory;
    Toy *toy = toy_new_on(d, p.batch);
    TrainOptions o = options(folder, 4, p.accumulate);
    toy->nan_sample = p.nan_sample;
    toy->optim.options.skip_norm = p.skip_norm;
    o.validate_interval = 1;
    o.no_graphs = p.no_graphs;
    o.fetch_ahead = p.fetch_ahead;
    check_ok(go(toy, &o, h));
    Snapshot s = snapshot_take(toy);
    toy_free(toy);
    folder_remove(folder);
    return s;
}

/* Both plans give the same weights, counters and skip records. */
static void check_same(Plan a, Plan b) {
    Heard *ha = calloc(1, sizeof *ha), *hb = calloc(1, sizeof *hb);
    Snapshot x = train_plan(a, ha), y = train_plan(b, hb);
    assert_true(snapshot_equal(&x, &y));
    assert_int_equal(ha->count, hb->count);
    for (int i = 0; i < ha->count; i++) {
        assert_string_equal(ha->kind[i], hb->kind[i]);
        assert_memory_equal(&ha->norm[i], &hb->norm[i], sizeof(double));
        const char *na = strstr(ha->record[i], "\"names\""),
                   *nb = strstr(hb->record[i], "\"names\"");
        if (na) assert_int_equal(strcspn(na, "]"), strcspn(nb, "]"));
        if (na) assert_memory_equal(na, nb, strcspn(na, "]"));
    }
    snapshot_free(&x);
    snapshot_free(&y);
    heard_free(ha);
    heard_free(hb);
}

/* ---- batches fetched ahead -------------------------------------------------------------- */

static void fetching_ahead_changes_nothing(void **unused) {
    (void)unused;
    for (int64_t accumulate = 1; accumulate <= 2; accumulate++)
        for (int64_t nan = -1; nan < 12; nan += 12) {
            Plan plain = {"cpu", 8 / accumulate, accumulate, nan, true, -1, NULL, 0}, ahead = plain;
            ahead.fetch_ahead = 1;
            check_same(plain, ahead);
        }
}

static void ahead_failures_belong_to_their_step(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    TrainOptions o = options(folder, 4, 1);
    o.fetch_ahead = 1;
    toy->refuse_at_call = 4;
    check_fails(go(toy, &o, NULL), STATUS_DATA, "step 4: sample 17 is broken");
    assert_int_equal(toy->state.step, 4);
    toy_free(toy);
    folder_remove(folder);
}

static void a_stop_forgets_what_was_fetched(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8), *whole = toy_new(8);
    TrainOptions o = options(folder, 4, 1);
    o.fetch_ahead = 1;
    toy->stop_at_call = 4; /* while step 3 runs */
    toy->stop_is_polled = true;
    assert_int_equal(go(toy, &o, NULL), STATUS_STOPPED);
    assert_int_equal(toy->state.step, 4);
    toy_free(toy);
    toy = toy_new(8);
    check_ok(checkpoint_resume(folder, "last", &toy->params, &toy->optim, &toy->state));
    check_ok(go(toy, &o, NULL));
    Snapshot resumed = snapshot_take(toy);
    folder_remove(folder);
    folder = folder_new();
    o.run_folder = folder;
    check_ok(go(whole, &o, NULL));
    Snapshot straight = snapshot_take(whole);
    assert_true(snapshot_equal(&resumed, &straight));
    snapshot_free(&resumed);
    snapshot_free(&straight);
    toy_free(toy);
    toy_free(whole);
    folder_remove(folder);
}

/* ---- recordings that fail --------------------------------------------------------------- */

static char log_text[4096];
static void keep_log(void *user, LogLevel level, const char *message) {
    (void)user;
    (void)level;
    snprintf(log_text, sizeof log_text, "%s", message);
}

static int begun, begin_fails_at;
static Status begin(Device *d) {
    (void)d;
    return begun++ >= begin_fails_at ? status_set(STATUS_DEVICE, "no recording today") : STATUS_OK;
}
static Status end(Device *d, DeviceGraph **out) {
    (void)d;
    *out = NULL;
    return status_set(STATUS_DEVICE, "the recording broke");
}

/* The "recording" of the CPU runs what it should only write down: a first micro-step does no harm.
 */
static void a_failed_recording_falls_back(void **unused) {
    (void)unused;
    Device *d;
    check_ok(device_open("cpu", &d));
    DeviceMemory memory = *d->memory;
    device_close(d);
    memory.graph_begin = begin;
    memory.graph_end = end;
    for (begin_fails_at = 0; begin_fails_at < 2; begin_fails_at++) {
        Plan plain = {"cpu", 4, 2, -1, true, -1, NULL, 0}, broken = plain;
        broken.memory = &memory;
        broken.no_graphs = false;
        begun = 0;
        log_text[0] = '\0';
        log_set_sink(keep_log, NULL);
        check_same(plain, broken);
        log_set_sink(NULL, NULL);
        assert_int_equal(begun, 1); /* once, then never again */
        assert_non_null(
            strstr(log_text, begin_fails_at ? "recording broke" : "no recording today"));
    }
}

/* ---- on a card -------------------------------------------------------------------------- */

static bool has_card(void) {
    Device *d;
    if (device_open("cuda", &d) != STATUS_OK) return false;
    device_close(d);
    return true;
}

static void graphs_change_nothing(void **unused) {
    (void)unused;
    if (!has_card()) skip();
    log_text[0] = '\0';
    log_set_sink(keep_log, NULL);
    for (int64_t accumulate = 1; accumulate <= 3; accumulate++)
        for (int64_t nan = -1; nan < 12; nan += 12) {
            int64_t batch = accumulate == 3 ? 2 : 8 / accumulate;
            Plan plain = {"cuda", batch, accumulate, nan, true, -1, NULL, 0}, graphs = plain;
            graphs.no_graphs = false;
            check_same(plain, graphs);
            graphs.fetch_ahead = 0;
            check_same(plain, graphs);
            plain.skip_norm = graphs.skip_norm = 1.0f; /* some steps are above it */
            check_same(plain, graphs);
        }
    log_set_sink(NULL, NULL);
    assert_null(strstr(log_text, "could not be recorded"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fetching_ahead_changes_nothing),
        cmocka_unit_test(ahead_failures_belong_to_their_step),
        cmocka_unit_test(a_stop_forgets_what_was_fetched),
        cmocka_unit_test(a_failed_recording_falls_back),
        cmocka_unit_test(graphs_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
