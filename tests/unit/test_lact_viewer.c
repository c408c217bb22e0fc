/* A viewer against the two passes on tokens that the host made; every call, the recorded ones too,
 * gives the same. On the CPU, and on a card where there is one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "lact_nvs_fixture.h"
#include "nvs/lact_viewer.h"

enum { INPUTS = 2, PIXELS = 8 * 12, CALLS = 4 };

typedef struct Stand {
    Device *device;
    Tape *tape;
    Params params;
    LactNvs *nvs;
    LactState *state;
} Stand;

static Status stand_open(Stand *s, const char *device, DType act) {
    const LactNvsConfig c = tiny(3, "base");
    *s = (Stand){0};
    TRY(device_open(device, &s->device));
    params_init(&s->params, s->device);
    check_ok(lact_nvs_new(&c, &s->params, &s->nvs));
    check_ok(params_build(&s->params, act, false));
    check_ok(params_initialise(&s->params, 1));
    check_ok(tape_new(s->device, &s->tape));
    tape_set_act(s->tape, act);
    check_ok(lact_nvs_state_new(s->nvs, s->device, 1, &s->state));
    return STATUS_OK;
}

static void stand_close(Stand *s) {
    lact_state_free(s->state);
    tape_free(s->tape);
    lact_nvs_free(s->nvs);
    params_free(&s->params);
    device_close(s->device);
}

static Camera camera_at(double x) {
    Camera c = {.fx = 11, .fy = 12, .cx = 6.5, .cy = 3.5};
    const double turn = 0.1 * x;
    const double pose[16] = {cos(turn),  0, sin(turn), x,   0, 1, 0, 0.1,
                             -sin(turn), 0, cos(turn), 0.2, 0, 0, 0, 1};
    memcpy(c.c2w, pose, sizeof pose);
    return c;
}

static void draw_pixels(uint8_t *pixels) {
    Rng rng = rng_stream(7, RNG_TEST, 0, 0);
    for (int i = 0; i < INPUTS * PIXELS * 3; i++) pixels[i] = (uint8_t)(rng_u32(&rng) >> 24);
}

/* Tokens from the host, both passes call by call. */
static void plain(Stand *s, const Camera *cameras, const Camera *target, uint8_t *pixels,
                  float *patches) {
    const int64_t l = lact_nvs_view_tokens(s->nvs), size = lact_nvs_token_size(s->nvs);
    float *tokens = malloc(sizeof *tokens * (size_t)(INPUTS * l * size));
    for (int i = 0; i < INPUTS; i++) {
        const Tensor rgb = tensor_3d(pixels + i * PIXELS * 3, DTYPE_U8, 8, 12, 3);
        check_ok(view_tokens(&cameras[i], 8, 12, 4, rgb, tokens + i * l * size));
    }
    tape_reset(s->tape, false);
    const int64_t in[] = {1, INPUTS * l, size}, one[] = {1, l, size};
    Var *x = tape_input(s->tape, push_floats(s->tape, tokens, DTYPE_F32, 3, in), "tokens");
    check_ok(lact_reconstruct(s->nvs, s->tape, x, s->state));
    check_ok(view_tokens(target, 8, 12, 4, tensor_none(), tokens));
    tape_reset(s->tape, false);
    x = tape_input(s->tape, push_floats(s->tape, tokens, DTYPE_F32, 3, one), "tokens");
    Var *y = lact_render(s->nvs, s->tape, x, s->state);
    check_ok(tape_status(s->tape));
    check_ok(device_pull(s->device, patches, y->value));
    free(tokens);
}

static void check_device(const char *name, DType act, float limit) {
    static uint8_t pixels[INPUTS * PIXELS * 3];
    float wanted[2][PIXELS * 3], got[PIXELS * 3], first[2][PIXELS * 3];
    const Camera cameras[INPUTS] = {camera_at(0), camera_at(1)};
    const Camera targets[2] = {camera_at(0.3), camera_at(0.8)};
    Stand s;
    LactViewer *v;
    if (stand_open(&s, name, act) != STATUS_OK) {
        print_message("no %s: %s\n", name, status_message());
        return;
    }
    draw_pixels(pixels);
    for (int i = 0; i < 2; i++) plain(&s, cameras, &targets[i], pixels, wanted[i]);
    check_ok(lact_viewer_new(s.nvs, s.tape, s.state, INPUTS, &v));
    for (int call = 0; call < CALLS; call++) {
        const int i = call % 2;
        check_ok(lact_viewer_reconstruct(v, cameras, pixels));
        check_ok(lact_viewer_render(v, &targets[i], got));
        assert_int_equal(lact_viewer_recorded(v), call > 0 && device_can_capture(s.device));
        if (call < 2) memcpy(first[i], got, sizeof got);
        assert_memory_equal(got, first[i], sizeof got);
        for (int j = 0; j < PIXELS * 3; j++) assert_float_equal(got[j], wanted[i][j], limit);
    }
    assert_true(memcmp(first[0], first[1], sizeof first[0]) != 0);
    lact_viewer_free(v);
    stand_close(&s);
}

static void views_are_those_of_the_passes(void **state) {
    (void)state;
    const char *const devices[] = {"cpu", "cuda"};
    for (int i = 0; i < 2; i++) {
        check_device(devices[i], DTYPE_F32, 1e-4f);
        check_device(devices[i], DTYPE_BF16, 2e-2f);
    }
}

static void wrong_states_are_refused(void **state) {
    (void)state;
    Stand s;
    LactViewer *v;
    LactState *two;
    check_ok(stand_open(&s, "cpu", DTYPE_F32));
    check_ok(lact_nvs_state_new(s.nvs, s.device, 2, &two));
    assert_int_equal(lact_viewer_new(s.nvs, s.tape, two, INPUTS, &v), STATUS_DATA);
    assert_non_null(strstr(status_message(), "one scene"));
    assert_int_equal(lact_viewer_new(s.nvs, s.tape, s.state, 0, &v), STATUS_USAGE);
    lact_state_free(two);
    check_ok(lact_state_new(s.device, 3, 1, 2, 4, 4, &two));
    assert_int_equal(lact_viewer_new(s.nvs, s.tape, two, INPUTS, &v), STATUS_DATA);
    lact_state_free(two);
    stand_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_are_those_of_the_passes),
        cmocka_unit_test(wrong_states_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
