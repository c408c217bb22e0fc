/* golden_check must be able to fail: copies of the committed files with one value off, one NaN, one
 * tensor less or one too many, files of no kind, and wrong usage, each with its exit code. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"
#include "core/memory.h"
#include "core/safetensors.h"

static const char vittt_file[] = TTV_SOURCE_DIR "/tests/data/golden/models/vittt.safetensors";
static const char image_file[] = TTV_SOURCE_DIR "/tests/data/golden/images/image.safetensors";

/* Exit code of golden_check with up to three arguments, its output thrown away. */
static int check(const char *a, const char *b, const char *c) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        dup2(null, 2);
        execl(GOLDEN_CHECK, GOLDEN_CHECK, a, b, c, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* What to do to a copy. */
typedef struct Damage {
    const char *source;
    const char *omit;   /* tensors whose name starts so are left out */
    const char *keep;   /* only these are kept, when set */
    const char *change; /* tensor whose first element changes */
    double factor;      /* F64: times this; U8: plus 1 */
    const char *extra;  /* an empty-handed tensor under this name */
} Damage;

static bool kept(const Damage *d, const char *name) {
    if (d->omit && strncmp(name, d->omit, strlen(d->omit)) == 0) return false;
    return !d->keep || strncmp(name, d->keep, strlen(d->keep)) == 0;
}

static void change_first(void *data, DType dtype, double factor) {
    if (dtype == DTYPE_U8) {
        *(uint8_t *)data ^= 1;
        return;
    }
    double value;
    memcpy(&value, data, sizeof value);
    value *= factor;
    memcpy(data, &value, sizeof value);
}

/* Writes the damaged copy and returns golden_check's exit code for it. */
static int check_copy(Damage d, const char *precision) {
    SafeFile *f;
    assert_int_equal(safetensors_open(d.source, &f), STATUS_OK);
    const int64_t n = safetensors_count(f);
    SafeItem *items = calloc((size_t)n + 1, sizeof *items);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        const SafeEntry *e = safetensors_at(f, i);
        if (!kept(&d, e->name)) continue;
        void *data = malloc(e->bytes + 1);
        memcpy(data, e->data, e->bytes);
        if (d.change && strcmp(e->name, d.change) == 0) change_first(data, e->dtype, d.factor);
        items[count++] = (SafeItem){e->name, tensor_of(data, e->dtype, e->rank, e->shape)};
    }
    double zero = 0;
    if (d.extra) items[count++] = (SafeItem){d.extra, tensor_1d(&zero, DTYPE_F64, 1)};
    SafeMeta meta[32];
    int64_t metas = safetensors_meta_count(f);
    assert_true(metas <= 32);
    for (int64_t i = 0; i < metas; i++) safetensors_meta_at(f, i, &meta[i].key, &meta[i].value);
    char path[64];
    snprintf(path, sizeof path, "/tmp/ttv-golden-%ld.safetensors", (long)getpid());
    assert_int_equal(safetensors_write(path, items, count, meta, metas), STATUS_OK);
    int code = precision ? check(path, "--precision", precision) : check(path, NULL, NULL);
    unlink(path);
    for (int64_t i = 0; i < count; i++)
        if (items[i].t.data != &zero) free(items[i].t.data);
    free(items);
    safetensors_close(f);
    return code;
}

static void an_unchanged_copy_passes(void **state) {
    (void)state;
    assert_int_equal(check_copy((Damage){.source = vittt_file}, NULL), 0);
    assert_int_equal(check_copy((Damage){.source = image_file}, NULL), 0);
}

static void a_part_of_the_file_is_enough(void **state) {
    (void)state;
    assert_int_equal(check_copy((Damage){.source = vittt_file, .keep = "iso."}, NULL), 0);
    assert_int_equal(check_copy((Damage){.source = vittt_file, .omit = "ttt.mse."}, NULL), 0);
    assert_int_equal(check_copy((Damage){.source = image_file, .keep = "crop."}, NULL), 0);
    assert_int_equal(check_copy((Damage){.source = image_file, .keep = "score."}, NULL), 0);
}

/* Inputs and outputs of every group: each one must matter. */
static void a_perturbed_value_fails(void **state) {
    (void)state;
    const char *const names[] = {"ttt.x",
                                 "ttt.p.w2",
                                 "ttt.base.y",
                                 "ttt.base.dx",
                                 "ttt.base.glu.u1",
                                 "ttt.base.dwc.g",
                                 "ttt.mse.g.w1",
                                 "ttt.q_is_k.y",
                                 "ttt.v3_linear_fork.g.w1",
                                 "iso.logits",
                                 "iso.loss",
                                 "iso.p.blocks.1.attn.w3",
                                 "iso.g.head.bias",
                                 "iso.g.blocks.0.attn.w1"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        Damage d = {.source = vittt_file, .change = names[i], .factor = 1.01};
        int code = check_copy(d, NULL);
        if (code != 1) print_error("%s: exit %d\n", names[i], code);
        assert_int_equal(code, 1);
    }
    Damage rough = {.source = vittt_file, .change = "ttt.base.y", .factor = -20};
    assert_int_equal(check_copy(rough, "bf16"), 1);
    Damage byte = {.source = image_file, .change = "resize.1.lanczos.40x56"};
    assert_int_equal(check_copy(byte, NULL), 1);
    const char *const scores[] = {"score.1.psnr", "score.1.ssim", "score.2.a", "score.3.b"};
    for (size_t i = 0; i < sizeof scores / sizeof scores[0]; i++) {
        Damage d = {.source = image_file, .change = scores[i], .factor = 1.0001};
        assert_int_equal(check_copy(d, NULL), 1);
    }
}

static void a_nan_fails(void **state) {
    (void)state;
    const char *const names[] = {"ttt.ga_both.dx", "iso.logits", "ttt.x", "iso.p.norm.bias"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        Damage d = {.source = vittt_file, .change = names[i], .factor = NAN};
        assert_int_equal(check_copy(d, NULL), 1);
    }
}

static void a_missing_or_unknown_tensor_fails(void **state) {
    (void)state;
    assert_int_equal(check_copy((Damage){.source = vittt_file, .omit = "iso.g.norm.bias"}, NULL),
                     3);
    assert_int_equal(check_copy((Damage){.source = vittt_file, .omit = "ttt.p.w3"}, NULL), 3);
    assert_int_equal(check_copy((Damage){.source = vittt_file, .omit = "ttt.base.y"}, NULL), 3);
    assert_int_equal(check_copy((Damage){.source = image_file, .omit = "resize.2.src"}, NULL), 3);
    assert_int_equal(check_copy((Damage){.source = image_file, .omit = "score.1.b"}, NULL), 3);
    assert_int_equal(check_copy((Damage){.source = image_file, .omit = "score.1.ssim"}, NULL), 3);
    assert_int_equal(check_copy((Damage){.source = image_file, .omit = "score.1.psnr"}, NULL), 1);
    assert_int_equal(check_copy((Damage){.source = vittt_file, .extra = "ttt.other.y"}, NULL), 1);
}

static void unreadable_files_and_usage(void **state) {
    (void)state;
    assert_int_equal(check("/nonexistent.safetensors", NULL, NULL), 3);
    assert_int_equal(check(TTV_SOURCE_DIR "/CMakeLists.txt", NULL, NULL), 3);
    Damage unknown = {.source = image_file, .keep = "none.", .extra = "other.y"};
    assert_int_equal(check_copy(unknown, NULL), 3);
    assert_int_equal(check(NULL, NULL, NULL), 2);
    assert_int_equal(check(vittt_file, "--precision", "fp8"), 2);
    assert_int_equal(check(vittt_file, "--device", "abacus"), 2);
    assert_int_equal(check("--unknown", NULL, NULL), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unchanged_copy_passes),
        cmocka_unit_test(a_part_of_the_file_is_enough),
        cmocka_unit_test(a_perturbed_value_fails),
        cmocka_unit_test(a_nan_fails),
        cmocka_unit_test(a_missing_or_unknown_tensor_fails),
        cmocka_unit_test(unreadable_files_and_usage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
