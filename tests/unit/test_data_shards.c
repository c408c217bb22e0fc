/* WebDataset shards, tars of tars, lists of files with braces (users_expect.md 5). */
#include "data_folder.h"

#include "datasets/folder_internal.h"
#include "datasets/tar_writer.h"

static void put_tar(const char *name, TarBytes *t) {
    char path[600];
    tar_finish(t);
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_ok(file_write_atomic(path, t->data, t->size));
    tar_drop(t);
}

/* Samples "000", "001", ... with the classes in `labels`, in a shard of that name. */
static void put_shard(const char *name, const char *labels) {
    TarBytes t = {0};
    for (int i = 0; labels[i] != '\0'; i++) {
        char member[32], label[3] = {labels[i], '\n'};
        snprintf(member, sizeof member, "%03d.jpg", i);
        tar_image(&t, member, "grey.jpg");
        snprintf(member, sizeof member, "%03d.cls", i);
        tar_file(&t, member, label);
    }
    put_tar(name, &t);
}

static void expect_labels(const Dataset *d, const char *digits) {
    char text[64] = "";
    for (int64_t i = 0; i < dataset_count(d); i++)
        snprintf(text + i, 2, "%lld", (long long)dataset_label(d, i));
    assert_string_equal(text, digits);
    assert_int_equal(read_all(d), dataset_count(d));
}

static void open_and_expect(const DataConfig *c, const char *split, const char *names,
                            const char *digits) {
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(c, split, &classes, &d));
    expect_classes(&classes, names);
    expect_labels(d, digits);
    dataset_close(d);
    class_list_free(&classes);
}

/* Both shards count from 000: no sample is lost, and none is twice. */
static void shards(void **state) {
    (void)state;
    put_shard("pets-train-00.tar", "201");
    put_shard("pets-train-01.tar", "12");
    put_shard("pets-validation-00.tar", "02");
    DataConfig c = config_of(root);
    open_and_expect(&c, "train", "0 1 2", "01122");
    open_and_expect(&c, "val", "0 1 2", "02");
    expect_log("1 of 3 classes have no image");
    in_root(c.root, "pets-{train-{00..01},validation-00}.tar");
    expect_error(&c, "train", &(ClassList){0}, STATUS_USAGE, "braces within braces");
    in_root(c.root, "pets-train-{00..01}.tar");
    open_and_expect(&c, "train", "0 1 2", "01122");
    open_and_expect(&c, "", "0 1 2", "01122");
    expect_error(&c, "val", &(ClassList){0}, STATUS_DATA, "its name is not that of the split");
    in_root(c.root, "pets-{train,validation}-{00,01}.tar");
    expect_error(&c, "train", &(ClassList){0}, STATUS_IO, "pets-validation-01.tar");
    const char *const splits[] = {"train", "val", "test"};
    for (int i = 0; i < 3; i++) {
        bool found;
        assert_ok(dataset_has_split(root, splits[i], &found));
        assert_int_equal(found, i < 2);
    }
}

static void names_of_classes(void **state) {
    (void)state;
    put_shard("train-0.tar", "021");
    put_text(root, "classes.txt", "dog\ncat\nzebra\n");
    DataConfig c = config_of(root);
    ClassList given = {0};
    Dataset *d;
    open_and_expect(&c, "train", "dog cat zebra", "012");
    put_text(root, "other.txt", "zebra\ncat\ndog\n");
    in_root(c.class_map, "other.txt"); /* what the user says goes first */
    open_and_expect(&c, "train", "zebra cat dog", "012");
    /* A model that knows the classes in another order: the names decide. */
    const char *const names[] = {"cat", "dog", "zebra"};
    assert_ok(class_names_unique(names, 3, &given));
    c.class_map[0] = '\0';
    assert_ok(dataset_open(&c, "train", &given, &d));
    expect_labels(d, "012");
    assert_int_equal(label_of(d, "000.jpg"), 1); /* dog */
    assert_int_equal(label_of(d, "002.jpg"), 0); /* cat */
    dataset_close(d);
    put_text(root, "classes.txt", "dog\ncat\nox\n");
    expect_error(&c, "train", &given, STATUS_DATA, "class 2 is none of the 3 classes");
    put_text(root, "classes.txt", "dog\ncat\n");
    expect_error(&c, "train", &given, STATUS_DATA, "none of the 2 classes");
    class_list_free(&given);
    /* Classes whose names are numbers in another order than their places. */
    char path[300];
    snprintf(path, sizeof path, "%s/classes.txt", root);
    assert_int_equal(remove(path), 0);
    const char *const numbers[] = {"0", "10", "2"};
    assert_ok(class_names_unique(numbers, 3, &given));
    assert_ok(dataset_open(&c, "train", &given, &d));
    expect_labels(d, "012");
    expect_log("taken as places in the class list (1 is '10')");
    dataset_close(d);
    class_list_free(&given);
}

static void labels_as_text_and_json(void **state) {
    (void)state;
    TarBytes t = {0};
    tar_image(&t, "a.JPEG", "grey.jpg");
    tar_file(&t, "a.json", "{\"label\": 1, \"caption\": \"x\"}");
    tar_file(&t, "a.txt", "a caption");
    tar_file(&t, "b.json", "{\"cls\": 0}");
    tar_image(&t, "b.png", "rgb.png");
    put_tar("train-0.tar", &t);
    DataConfig c = config_of(root);
    open_and_expect(&c, "train", "0 1", "01");
    tar_image(&t, "x.jpg", "grey.jpg");
    tar_file(&t, "x.cls", " zebra \r\n");
    tar_file(&t, "x.json", "{\"label\": 7}"); /* .cls goes first */
    tar_image(&t, "y.jpg", "grey.jpg");
    tar_file(&t, "y.cls", "dog");
    put_tar("val-0.tar", &t);
    open_and_expect(&c, "val", "dog zebra", "01");
}

static void refuse(const char *image, const char *label, const char *text, const char *message) {
    TarBytes t = {0};
    tar_image(&t, "0.jpg", "grey.jpg");
    tar_file(&t, "0.cls", "0");
    tar_image(&t, image, "grey.jpg");
    tar_file(&t, label, text);
    put_tar("train-0.tar", &t);
    DataConfig c = config_of(root);
    expect_error(&c, "train", &(ClassList){0}, STATUS_DATA, message);
}

static void faults(void **state) {
    (void)state;
    refuse("1.jpg", "2.cls", "0", "train-0.tar:1.jpg: neither .cls nor .json");
    refuse("1.jpg", "1.cls", " \n", "train-0.tar:1.cls: one class index or name");
    refuse("1.jpg", "1.json", "{\"label\": -1}", "train-0.tar:1.json: no \"label\"");
    refuse("1.jpg", "1.json", "{\"label\": 1e300}", "train-0.tar:1.json: no \"label\"");
    refuse("1.jpg", "1.json", "{\"label\": 1,", "train-0.tar:1.json: ");
    refuse("1.jpg", "1.cls", "999999999", "at most 1000000 classes");
    refuse("0.png", "9.txt", "", "train-0.tar:0.png: a second picture of one sample");
    put_shard("train-0.tar", "12");
    DataConfig c = config_of(root);
    expect_error(&c, "train", &(ClassList){0}, STATUS_DATA, "run from 1 to 2");
    put_shard("train-0.tar", "01");
    TarBytes t = {0};
    tar_image(&t, "train/dog/0.jpg", "grey.jpg");
    put_tar("train-1.tar", &t);
    expect_error(&c, "train", &(ClassList){0}, STATUS_DATA, "do not mix");
}

/* The split's folder holds the shards. */
static void folder_of_shards(void **state) {
    (void)state;
    char path[300];
    snprintf(path, sizeof path, "%s/test", root);
    assert_ok(file_make_folder(path));
    put_shard("test/0.tar", "10");
    put_shard("test/1.tar", "1");
    DataConfig c = config_of(root);
    open_and_expect(&c, "test", "0 1", "011");
}

static void tar_of_tars(void **state) {
    (void)state;
    TarBytes outer = {0}, inner = {0};
    for (int i = 0; i < 2; i++) {
        tar_image(&inner, i == 0 ? "n02_1.JPEG" : "n01_1.JPEG", "grey.jpg");
        tar_image(&inner, i == 0 ? "n02_2.JPEG" : "n01_2.JPEG", "rgb_420.jpg");
        tar_finish(&inner);
        tar_put(&outer, i == 0 ? "n02.tar" : "n01.tar", NULL, '0', inner.data, inner.size);
        tar_drop(&inner);
    }
    TarBytes copy = {malloc(outer.size), outer.size};
    memcpy(copy.data, outer.data, outer.size);
    put_tar("img_train.tar", &outer);
    DataConfig c = config_of(root);
    open_and_expect(&c, "train", "n01 n02", "0011");
    in_root(c.root, "img_train.tar");
    open_and_expect(&c, "train", "n01 n02", "0011");
    expect_error(&c, "val", &(ClassList){0}, STATUS_DATA, "no folder 'val' inside");
    copy.data[512 + 100] ^= 1; /* in the header of the first inner member */
    put_tar("img_train.tar", &copy);
    expect_error(&c, "train", &(ClassList){0}, STATUS_DATA, "img_train.tar:n02.tar: ");
}

static void expect_parts(const char *text, const char *joined) {
    NameList l;
    char all[1024] = "";
    assert_ok(root_parts(text, &l));
    for (int64_t i = 0; i < l.count; i++) {
        if (i > 0) strcat(all, " ");
        strcat(all, l.names[i]);
    }
    assert_string_equal(all, joined);
    name_list_free(&l);
}

static void expect_bad_parts(const char *text, const char *message) {
    NameList l;
    int64_t live = mem_live();
    assert_int_equal(root_parts(text, &l), STATUS_USAGE);
    assert_message(message);
    assert_int_equal(mem_live(), live);
}

static void braces(void **state) {
    (void)state;
    expect_parts("a.tar", "a.tar");
    expect_parts("a.tar,,b.tar,", "a.tar b.tar");
    expect_parts("x{8..11}.tar", "x8.tar x9.tar x10.tar x11.tar");
    expect_parts("x{008..010}", "x008 x009 x010");
    expect_parts("{a,b}{1,2}", "a1 a2 b1 b2");
    expect_parts("p{a,}q,{0..0}", "paq pq 0");
    expect_parts("x{a..b}", "xa..b");
    expect_bad_parts("x{3..1}", "runs backwards");
    expect_bad_parts("x{0..99999999}", "too many");
    expect_bad_parts("{0..9999}{0..9999}", "too many");
    expect_bad_parts("x{a", "not closed");
    assert_true(part_names_split("d.val/imagenet-train-0.tar", "train"));
    assert_true(part_names_split("img_val.tar", "val"));
    assert_true(part_names_split("x-validation.tar", "val"));
    assert_true(part_names_split("any.tar", ""));
    assert_false(part_names_split("trainer-0.tar", "train"));
    assert_false(part_names_split("train/0.tar", "train"));
    assert_false(part_names_split("train.txt", "train"));
}

static void written_tar(void **state) {
    (void)state;
    char path[300], long_name[102];
    TarWriter *w;
    Tar *t;
    snprintf(path, sizeof path, "%s/a.tar", root);
    assert_ok(tar_writer_open(path, &w));
    memset(long_name, 'n', 101);
    long_name[101] = '\0';
    assert_int_equal(tar_writer_add(w, long_name, "x", 1), STATUS_USAGE);
    assert_int_equal(tar_writer_add(w, "", "x", 1), STATUS_USAGE);
    long_name[100] = '\0';
    assert_ok(tar_writer_add(w, long_name, NULL, 0));
    assert_ok(tar_writer_add(w, "b", long_name, 100));
    assert_int_equal(tar_writer_bytes(w), 3 * 512);
    assert_ok(tar_writer_commit(w));
    assert_ok(tar_open(path, &t));
    assert_int_equal(tar_count(t), 2);
    assert_string_equal(tar_at(t, 0)->name, long_name);
    assert_int_equal(tar_at(t, 0)->size, 0);
    assert_int_equal(tar_at(t, 1)->size, 100);
    assert_memory_equal(tar_at(t, 1)->data, long_name, 100);
    tar_close(t);
    assert_ok(tar_writer_open(path, &w));
    assert_ok(tar_writer_add(w, "c", "x", 1));
    tar_writer_abort(w); /* what was there stays */
    assert_ok(tar_open(path, &t));
    assert_int_equal(tar_count(t), 2);
    tar_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(shards), TEST(names_of_classes), TEST(labels_as_text_and_json),
        TEST(faults), TEST(folder_of_shards), TEST(tar_of_tars),
        TEST(braces), TEST(written_tar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
