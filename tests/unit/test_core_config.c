/* Configurations: every error with its file:line text, precedence, round trip. */
#include "core_fixture.h"

#include "core/config.h"

typedef struct ModelValues {
    int64_t depth;
    double rate;
    bool bias;
    char name[CONFIG_TEXT];
    int precision;
} ModelValues;

typedef struct OptimValues {
    double lr;
    int64_t steps;
    bool progress;
} OptimValues;

static ModelValues model;
static OptimValues optim;

static const Option model_options[] = {
    {"depth", OPTION_INT, offsetof(ModelValues, depth), "12", 1, 64, NULL, "depth", "layers"},
    {"rate", OPTION_FLOAT, offsetof(ModelValues, rate), "0.1", 0, 1, NULL, NULL, "drop rate"},
    {"bias", OPTION_BOOL, offsetof(ModelValues, bias), "true", 0, 0, NULL, "bias", "use a bias"},
    {"name", OPTION_STRING, offsetof(ModelValues, name), "vittt", 0, 0, NULL, "model", "name"},
    {"precision", OPTION_CHOICE, offsetof(ModelValues, precision), "bf16", 0, 0, "fp32|tf32|bf16",
     "precision", "arithmetic"},
    {0},
};

static const Option optim_options[] = {
    {"lr", OPTION_FLOAT, offsetof(OptimValues, lr), "5e-4", 0, 1e30, NULL, "lr", "learning rate"},
    {"steps", OPTION_INT, offsetof(OptimValues, steps), NULL, 0, 0, NULL, NULL, "steps"},
    {"progress", OPTION_BOOL, offsetof(OptimValues, progress), "true", 0, 0, NULL, "progress", "p"},
    {0},
};

static const Section sections[] = {{"model", model_options, &model},
                                   {"optim", optim_options, &optim}};

static Config *fresh(void) {
    Config *c;
    assert_ok(config_new(sections, COUNT(sections), &c));
    return c;
}

static Status read_text(Config *c, const char *text) {
    return config_read_text(c, text, strlen(text), "t.ini", false);
}

static void defaults_come_from_the_table(void **state) {
    (void)state;
    Config *c = fresh();
    assert_int_equal(model.depth, 12);
    assert_true(model.rate == 0.1 && model.bias && optim.lr == 5e-4);
    assert_string_equal(model.name, "vittt");
    assert_int_equal(model.precision, 2);
    assert_int_equal(optim.steps, 0);
    assert_false(config_is_set(c, "model", "depth"));
    config_free(c);
    config_free(NULL);
}

static void a_bad_table_is_an_internal_error(void **state) {
    (void)state;
    static const Option bad[] = {
        {"depth", OPTION_INT, offsetof(ModelValues, depth), "99", 1, 64, NULL, NULL, ""}, {0}};
    Section s = {"model", bad, &model};
    Config *c;
    assert_int_equal(config_new(&s, 1, &c), STATUS_INTERNAL);
    assert_string_equal(status_message(), "default in [model]: 'depth' is '99'; expected 1 to 64");
    assert_null(c);
}

static void lines_are_understood(void **state) {
    (void)state;
    Config *c = fresh();
    assert_ok(
        read_text(c, "\xef\xbb\xbf; comment\n# another\n\n[model] ; here\r\n  depth = 24 ; in\r\n"
                     "rate: .25\t# colon\nbias = off\nname = a;b#c \"d\" ;e\n"
                     "precision=tf32\n[optim]\nlr = 1e-3\n[model]\n"));
    assert_int_equal(model.depth, 24);
    assert_true(model.rate == 0.25 && !model.bias && optim.lr == 1e-3);
    assert_string_equal(model.name, "a;b#c \"d\"");
    assert_int_equal(model.precision, 1);
    assert_true(config_is_set(c, "model", "depth"));
    assert_false(config_is_set(c, "optim", "steps"));
    assert_ok(read_text(c, "[model]\nname = \"  \\\"x\\\" ;\\\\ \\t\\n\\x1b\\xff\" # quoted"));
    assert_string_equal(model.name, "  \"x\" ;\\ \t\n\x1b\xff");
    assert_ok(read_text(c, "[model]\nname =\ndepth=0007\n"));
    assert_string_equal(model.name, "");
    assert_int_equal(model.depth, 7);
    assert_ok(read_text(c, "[model]\nrate = 12.5%\n")); /* a share, where the range is one */
    assert_true(model.rate == 0.125);
    assert_int_equal(read_text(c, "[model]\nrate = 101%\n"), STATUS_DATA);
    assert_int_equal(read_text(c, "[model]\nrate = 1%%\n"), STATUS_DATA);
    assert_int_equal(read_text(c, "[optim]\nlr = 1%\n"), STATUS_DATA);
    assert_ok(read_text(c, ""));
    config_free(c);
}

static void long_values_are_kept_whole(void **state) {
    (void)state;
    char text[CONFIG_TEXT + 64] = "[model]\nname = ";
    size_t start = strlen(text);
    Config *c = fresh();
    memset(text + start, 'y', CONFIG_TEXT - 1);
    assert_ok(read_text(c, text));
    assert_int_equal(strlen(model.name), CONFIG_TEXT - 1);
    text[start + CONFIG_TEXT - 1] = 'y';
    assert_int_equal(read_text(c, text), STATUS_DATA);
    assert_string_equal(status_message(), "t.ini:2: 'name' has 1024 bytes; expected at most 1023");
    config_free(c);
}

static void every_fault_names_its_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"[model]\ndeph = 3", "t.ini:2: unknown key 'deph' in [model]; did you mean 'depth'?"},
        {"[model]\n\nquux = 3", "t.ini:3: unknown key 'quux' in [model]"},
        {"[model]\nlr = 3", "t.ini:2: unknown key 'lr' in [model]; it belongs to [optim]"},
        {"[modle]\ndepth = 3", "t.ini:2: unknown section [modle]; did you mean [model]?"},
        {"[zzzzz]\ndepth = 3", "t.ini:2: unknown section [zzzzz]"},
        {"[model]\ndepth = 3\n[optim]\n[model]\ndepth = 3",
         "t.ini:5: duplicate key 'depth' in [model]; first set on line 2"},
        {"depth = 3", "t.ini:1: key 'depth' stands before any [section]"},
        {"[model]\ninclude = a.ini", "t.ini:2: unknown key 'include' in [model]"},
        {"include = a.ini", "t.ini:1: 'include' is not possible here"},
        {"[model\n", "t.ini:1: ']' is missing"},
        {"[model] depth = 3", "t.ini:1: unexpected text after ']'"},
        {"[model]\ndepth", "t.ini:2: expected 'key = value' or '[section]'"},
        {"[model]\n= 3", "t.ini:2: the key is missing"},
        {"[model]\ndepth =", "t.ini:2: 'depth' is ''; expected a whole number"},
        {"[model]\ndepth = ; 3", "t.ini:2: 'depth' is ''; expected a whole number"},
        {"[model]\ndepth = 3.5", "t.ini:2: 'depth' is '3.5'; expected a whole number"},
        {"[model]\ndepth = 1e1", "t.ini:2: 'depth' is '1e1'; expected a whole number"},
        {"[model]\ndepth = 0", "t.ini:2: 'depth' is '0'; expected 1 to 64"},
        {"[model]\ndepth = 65", "t.ini:2: 'depth' is '65'; expected 1 to 64"},
        {"[model]\ndepth = 99999999999999999999",
         "t.ini:2: 'depth' is '99999999999999999999'; expected a whole number of 64 bits"},
        {"[model]\nrate = x", "t.ini:2: 'rate' is 'x'; expected a number"},
        {"[model]\nrate = 0.5 0.6", "t.ini:2: 'rate' is '0.5 0.6'; expected a number"},
        {"[model]\nrate = nan", "t.ini:2: 'rate' is 'nan'; expected a finite number"},
        {"[model]\nrate = 1e999", "t.ini:2: 'rate' is '1e999'; expected a finite number"},
        {"[model]\nrate = 1.5", "t.ini:2: 'rate' is '1.5'; expected 0 to 1"},
        {"[optim]\nlr = -1", "t.ini:2: 'lr' is '-1'; expected at least 0"},
        {"[model]\nbias = True", "t.ini:2: 'bias' is 'True'; expected true or false"},
        {"[model]\nprecision = fp23", "t.ini:2: 'precision' is 'fp23'; expected one of fp32, tf32, "
                                      "bf16; did you mean 'fp32'?"},
        {"[model]\nprecision = int8",
         "t.ini:2: 'precision' is 'int8'; expected one of fp32, tf32, bf16"},
        {"[model]\nname = \"x", "t.ini:2: closing quote is missing"},
        {"[model]\nname = \"x\" y", "t.ini:2: unexpected text after the closing quote"},
        {"[model]\nname = \"\\q\"", "t.ini:2: unknown escape in a quoted value"},
        {"[model]\nname = \"\\x0\"", "t.ini:2: unknown escape in a quoted value"},
        {"[model]\nname = \"\\x00\"", "t.ini:2: NUL byte in a value"},
        {"[model]\nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn = 1",
         "t.ini:2: the name is longer than 48 bytes"},
        {"[model]\ndep\x1bth = 1", "t.ini:2: unknown key 'dep\\x1bth' in [model]"},
        {"[model]\ndepth ;= 1", "t.ini:2: not understood; expected 'key = value' or '[section]'"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Config *c = fresh();
        Status s = read_text(c, cases[i].text);
        if (s != STATUS_DATA ||
            strncmp(status_message(), cases[i].message, strlen(cases[i].message))) {
            fail_msg("case %d: %s '%s', expected '%s'", i, status_name(s), status_message(),
                     cases[i].message);
        }
        config_free(c);
    }
}

static void whole_files_have_limits(void **state) {
    (void)state;
    Config *c = fresh();
    static const char nul[] = "[model]\ndepth = 3\0\n";
    assert_int_equal(config_read_text(c, nul, sizeof nul - 1, "t.ini", false), STATUS_DATA);
    assert_string_equal(status_message(), "t.ini:2: NUL byte; expected a text file");
    char *big = malloc((1 << 20) + 1);
    memset(big, '\n', (1 << 20) + 1);
    assert_ok(config_read_text(c, big, 1 << 20, "t.ini", false));
    assert_int_equal(config_read_text(c, big, (1 << 20) + 1, "t.ini", false), STATUS_DATA);
    assert_message("1048577 bytes, but at most 1048576 are accepted");
    const char *path = put_file("big.ini", big, (1 << 20) + 1);
    assert_int_equal(config_read_file(c, path), STATUS_DATA);
    assert_message("big.ini");
    free(big);
    assert_int_equal(config_read_file(c, in_scratch("absent.ini")), STATUS_IO);
    assert_message("absent.ini': No such file");
    assert_int_equal(config_read_file(c, scratch), STATUS_DATA);
    assert_message("is a directory");
    config_free(c);
    scratch_empty();
}

static void includes_are_relative_and_come_first(void **state) {
    (void)state;
    Config *c = fresh();
    put_text("base.ini", "[model]\ndepth = 3\nrate = 0.5\n");
    const char *path = put_text("x.ini", "include = base.ini\n[model]\ndepth = 4\n");
    assert_ok(config_read_file(c, path));
    assert_int_equal(model.depth, 4);
    assert_true(model.rate == 0.5);
    path = put_text("self.ini", "include = self.ini\n");
    assert_int_equal(config_read_file(c, path), STATUS_DATA);
    assert_message("self.ini:1: includes are nested deeper than 8 files");
    path = put_text("gone.ini", "\ninclude = nowhere.ini\n");
    assert_int_equal(config_read_file(c, path), STATUS_IO);
    assert_message("gone.ini:2: include: cannot open");
    put_text("bad.ini", "[model]\ndepth = x\n");
    path = put_text("y.ini", "include = bad.ini\n");
    assert_int_equal(config_read_file(c, path), STATUS_DATA);
    assert_message("bad.ini:2: 'depth' is 'x'");
    config_free(c);
    scratch_empty();
}

static void unknown_sections_may_be_skipped(void **state) {
    (void)state;
    Config *c = fresh();
    static const char text[] = "[data]\nroot = /x\n[model]\ndepth = 5\n";
    assert_ok(config_read_text(c, text, sizeof text - 1, "meta", true));
    assert_int_equal(model.depth, 5);
    static const char bad[] = "[data]\nroot = /x\n[model]\ndeep = 5\n";
    assert_int_equal(config_read_text(c, bad, sizeof bad - 1, "meta", true), STATUS_DATA);
    assert_message("meta:4: unknown key 'deep' in [model]");
    config_free(c);
}

static void assignments_and_flags_set_values(void **state) {
    (void)state;
    Config *c = fresh();
    assert_ok(config_set(c, "model.name=a=b.c ;x", "--set"));
    assert_string_equal(model.name, "a=b.c ;x");
    assert_ok(config_set(c, "optim.lr=3e-4", "--set"));
    assert_true(optim.lr == 3e-4);
    assert_ok(config_set_flag(c, "depth", "7"));
    assert_int_equal(model.depth, 7);
    assert_ok(config_set_flag(c, "no-bias", NULL));
    assert_false(model.bias);
    assert_ok(config_set_flag(c, "bias", NULL));
    assert_true(model.bias);
    assert_ok(config_set_flag(c, "bias", "false"));
    assert_false(model.bias);
    static const struct {
        const char *set, *flag, *value, *message;
    } bad[] = {
        {"model.deph=3", NULL, NULL, "--set model.deph=3: unknown key 'deph' in [model]; did you"},
        {"modl.depth=3", NULL, NULL, "--set modl.depth=3: unknown section [modl]; did you mean"},
        {"model.depth=x", NULL, NULL, "--set: 'depth' is 'x'; expected a whole number"},
        {"depth=3", NULL, NULL, "--set depth=3: expected section.key=value"},
        {"model.depth", NULL, NULL, "--set model.depth: expected section.key=value"},
        {"=a.b", NULL, NULL, "--set =a.b: expected section.key=value"},
        {NULL, "dept", "3", "unknown flag '--dept'; did you mean '--depth'?"},
        {NULL, "zzzzzzz", NULL, "unknown flag '--zzzzzzz'"},
        {NULL, "no-depth", NULL, "unknown flag '--no-depth'"},
        {NULL, "depth", NULL, "flag '--depth' needs a value"},
        {NULL, "no-bias", "true", "flag '--no-bias' takes no value"},
        {NULL, "depth", "0", "--depth: 'depth' is '0'; expected 1 to 64"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        Status s = bad[i].set != NULL ? config_set(c, bad[i].set, "--set")
                                      : config_set_flag(c, bad[i].flag, bad[i].value);
        assert_int_equal(s, STATUS_USAGE);
        assert_message(bad[i].message);
    }
    config_free(c);
}

static void written_text_reads_back_equal(void **state) {
    (void)state;
    static const char *const names[] = {"",          " lead",     "tail ",    "a ;b",
                                        "a #b",      ";x",        "\"q\"",    "back\\slash",
                                        "tab\there", "new\nline", "\x01\x7f", "caf\xc3\xa9",
                                        "bad\xff",   "a;b",       "\\"};
    static const double rates[] = {0.1, 1.0 / 3, 5e-324, 0.30000000000000004, 1, 0};
    for (int origins = 0; origins < 2; origins++) {
        for (int i = 0; i < COUNT(names); i++) {
            Config *c = fresh();
            strcpy(model.name, names[i]);
            model.rate = rates[i % COUNT(rates)];
            model.bias = i % 2;
            model.precision = i % 3;
            optim.steps = INT64_MIN + i;
            ModelValues before = model;
            char *text;
            assert_ok(config_write(c, origins, &text));
            config_free(c);
            c = fresh();
            assert_ok(read_text(c, text));
            assert_string_equal(model.name, names[i]);
            assert_true(model.rate == before.rate && model.bias == before.bias);
            assert_int_equal(model.precision, before.precision);
            assert_int_equal(optim.steps, INT64_MIN + i);
            mem_free(text);
            config_free(c);
        }
    }
}

static void origins_are_written(void **state) {
    (void)state;
    Config *c = fresh();
    char *text;
    assert_ok(read_text(c, "[model]\n\ndepth = 3\n"));
    assert_ok(config_set(c, "model.rate=0.2", "--set"));
    assert_ok(config_set_flag(c, "model", "x"));
    assert_ok(config_write(c, true, &text));
    assert_string_equal(text, "[model]\n"
                              "depth = 3  ; t.ini:3\n"
                              "rate = 0.2  ; --set\n"
                              "bias = true  ; default\n"
                              "name = x  ; --model\n"
                              "precision = bf16  ; default\n"
                              "\n[optim]\n"
                              "lr = 0.0005  ; default\n"
                              "steps = 0  ; default\n"
                              "progress = true  ; default\n");
    mem_free(text);
    config_free(c);
}

static void count_option(void *user, const Section *s, const Option *o) {
    (void)s;
    (void)o;
    ++*(int *)user;
}

static void options_are_visited(void **state) {
    (void)state;
    Config *c = fresh();
    int count = 0;
    config_each(c, count_option, &count);
    assert_int_equal(count, 8);
    config_free(c);
}

static void near_names_are_found(void **state) {
    (void)state;
    static const char *const names[] = {"depth", "width", "batch-size", "lr", "learning-rate"};
    assert_string_equal(nearest_name("deph", names, 5), "depth");
    assert_string_equal(nearest_name("Depth", names, 5), "depth");
    assert_string_equal(nearest_name("dpeth", names, 5), "depth");
    assert_string_equal(nearest_name("batch_size", names, 5), "batch-size");
    assert_string_equal(nearest_name("rl", names, 5), "lr");
    assert_string_equal(nearest_name("lerning-rat", names, 5), "learning-rate");
    assert_null(nearest_name("epochs", names, 5));
    assert_null(nearest_name("x", names, 5));
    assert_null(nearest_name("", names, 5));
    assert_null(nearest_name("depth", names, 0));
}

static Status use_everything(const char *path) {
    Config *c;
    char *text;
    TRY(config_new(sections, COUNT(sections), &c));
    Status s = config_read_file(c, path);
    if (s == STATUS_OK) s = config_set(c, "model.depth=9", "--set");
    if (s == STATUS_OK) s = config_set_flag(c, "bias", NULL);
    if (s == STATUS_OK) s = config_write(c, true, &text);
    if (s == STATUS_OK) mem_free(text);
    config_free(c);
    return s;
}

static void every_failed_allocation_is_survived(void **state) {
    (void)state;
    int64_t before = mem_live();
    put_text("base.ini", "[model]\ndepth = 3\n");
    const char *path = put_text("x.ini", "include = base.ini\n[model]\nname = abc\nrate = 0.5\n");
    for (int64_t n = 1;; n++) {
        mem_fail_at(n);
        Status s = use_everything(path);
        bool fired = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(mem_live(), before);
        if (!fired) {
            assert_ok(s);
            assert_true(n > 10);
            break;
        }
        assert_int_equal(s, STATUS_MEMORY);
        assert_message("out of memory");
    }
    scratch_empty();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_come_from_the_table),
        cmocka_unit_test(a_bad_table_is_an_internal_error),
        cmocka_unit_test(lines_are_understood),
        cmocka_unit_test(long_values_are_kept_whole),
        cmocka_unit_test(every_fault_names_its_line),
        cmocka_unit_test(whole_files_have_limits),
        cmocka_unit_test(includes_are_relative_and_come_first),
        cmocka_unit_test(unknown_sections_may_be_skipped),
        cmocka_unit_test(assignments_and_flags_set_values),
        cmocka_unit_test(written_text_reads_back_equal),
        cmocka_unit_test(origins_are_written),
        cmocka_unit_test(options_are_visited),
        cmocka_unit_test(near_names_are_found),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
