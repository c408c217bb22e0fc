/* What stands in a room: tables, shelves, seats, columns, boxes, balls, pictures, lamps. */
#include "datasets/synth_internal.h"

/* ---- building blocks ---- */

/* Where a piece stands: its origin on the floor, turned about the vertical. */
typedef struct Place {
    SynthScene *scene;
    Rng *rng;
    Vec origin;
    double cosine, sine;
} Place;

static Place place_at(SynthScene *s, Rng *rng, Vec origin, double angle) {
    return (Place){s, rng, origin, cos(angle), sin(angle)};
}

static int add_material(SynthScene *s, Material m) {
    if (s->material_count == MAX_MATERIALS) return (int)(m.salt % MAX_MATERIALS);
    s->materials[s->material_count] = m;
    return s->material_count++;
}

static int pick(Place *p, Pattern pattern) {
    return add_material(p->scene, synth_material(p->rng, pattern));
}

static int pick_any(Place *p) {
    return add_material(p->scene, synth_any_material(p->rng));
}

/* A solid at `at` in the piece's axes. A full scene takes no more. */
static void put(Place *p, SolidKind kind, Vec at, Vec half, int material) {
    SynthScene *s = p->scene;
    if (s->solid_count == MAX_SOLIDS) return;
    Vec turned = vec(p->cosine * at.x + p->sine * at.z, at.y, -p->sine * at.x + p->cosine * at.z);
    s->solids[s->solid_count++] =
        (Solid){kind, material, vec_add(p->origin, turned), half, p->cosine, p->sine};
}

/* Box by its bounds above the floor: x and z around `at`, from `low` to `high` metres up. */
static void put_box(Place *p, double x, double z, double low, double high, double half_x,
                    double half_z, int material) {
    put(p, SOLID_BOX, vec(x, -0.5 * (low + high), z), vec(half_x, 0.5 * (high - low), half_z),
        material);
}

static double solid_radius(const Solid *o) {
    if (o->kind == SOLID_BALL) return o->half.x;
    double z = o->kind == SOLID_BOX ? o->half.z : 0;
    return sqrt(o->half.x * o->half.x + o->half.y * o->half.y + z * z);
}

static void surround_solids(SynthScene *s) {
    const double slack = 1e-3;
    for (int i = 0; i < MAX_SOLIDS; i++) {
        const Solid *o = &s->solids[i];
        s->balls.radius[i] = i < s->solid_count ? (float)(solid_radius(o) + slack) : -1.0f;
        s->balls.x[i] = (float)o->center.x;
        s->balls.y[i] = (float)o->center.y;
        s->balls.z[i] = (float)o->center.z;
    }
}

/* ---- pieces ---- */

/* A small thing on a surface `up` metres high. */
static void put_trinket(Place *p, double x, double z, double up) {
    double size = rng_range(p->rng, 0.06, 0.15), tall = rng_range(p->rng, 0.7, 2.2) * size;
    switch (rng_below(p->rng, 3)) {
    case 0:
        put(p, SOLID_BALL, vec(x, -up - size, z), vec(size, size, size), pick_any(p));
        break;
    case 1:
        put(p, SOLID_CYLINDER, vec(x, -up - tall, z), vec(0.7 * size, tall, 0), pick_any(p));
        break;
    default:
        put_box(p, x, z, up, up + 2 * tall, size, rng_range(p->rng, 0.3, 1) * size, pick_any(p));
    }
}

static void put_table(Place *p) {
    double high = rng_range(p->rng, 0.45, 0.85), x = rng_range(p->rng, 0.4, 0.9);
    double z = rng_range(p->rng, 0.3, 0.5);
    int top = pick(p, rng_uniform(p->rng) < 0.7 ? PATTERN_WOOD : PATTERN_NOISE);
    put_box(p, 0, 0, high - 0.05, high, x, z, top);
    for (int leg = 0; leg < 4; leg++)
        put_box(p, (leg & 1 ? 1 : -1) * (x - 0.06), (leg & 2 ? 1 : -1) * (z - 0.06), 0, high - 0.05,
                0.035, 0.035, top);
    int things = 2 + (int)rng_below(p->rng, 4);
    for (int i = 0; i < things; i++)
        put_trinket(p, rng_range(p->rng, -0.8, 0.8) * x, rng_range(p->rng, -0.7, 0.7) * z, high);
}

static void put_shelf(Place *p) {
    double high = rng_range(p->rng, 1.2, 2.0), x = rng_range(p->rng, 0.4, 0.8), z = 0.17;
    int wood = pick(p, PATTERN_WOOD), boards = 3 + (int)rng_below(p->rng, 2);
    put_box(p, 0, z, 0, high, x, 0.015, pick(p, PATTERN_NOISE));
    put_box(p, -x, 0, 0, high, 0.02, z, wood);
    put_box(p, x, 0, 0, high, 0.02, z, wood);
    for (int b = 0; b <= boards; b++) {
        double up = 0.02 + (high - 0.04) * b / boards;
        put_box(p, 0, 0, up - 0.02, up + 0.015, x, z, wood);
        double at = -x + 0.06;
        while (b < boards && at < x - 0.12) { /* books and gaps */
            double wide = rng_range(p->rng, 0.02, 0.06);
            double tall = rng_range(p->rng, 0.5, 0.85) * high / boards;
            if (rng_uniform(p->rng) < 0.7)
                put_box(p, at + wide, -0.02, up + 0.015, up + tall, wide, 0.12,
                        (int)rng_below(p->rng, (uint64_t)p->scene->material_count));
            at += 2 * wide + 0.008;
        }
    }
}

static void put_seat(Place *p) {
    double x = rng_range(p->rng, 0.35, 0.9), z = rng_range(p->rng, 0.35, 0.45);
    int cloth = pick_any(p), cushion = pick_any(p);
    put_box(p, 0, 0, 0.08, 0.4, x, z, cloth);
    put_box(p, 0, z - 0.08, 0.4, rng_range(p->rng, 0.75, 1.0), x, 0.09, cloth);
    put_box(p, -x, 0, 0.08, 0.6, 0.07, z, cloth);
    put_box(p, x, 0, 0.08, 0.6, 0.07, z, cloth);
    put_box(p, rng_range(p->rng, -0.5, 0.5) * x, 0, 0.4, 0.58, 0.18, 0.14, cushion);
}

static void put_stack(Place *p) {
    double up = 0, half = rng_range(p->rng, 0.18, 0.42);
    int boxes = 1 + (int)rng_below(p->rng, 3);
    for (int i = 0; i < boxes; i++) {
        double tall = rng_range(p->rng, 0.15, 0.5);
        put_box(p, rng_range(p->rng, -0.05, 0.05), rng_range(p->rng, -0.05, 0.05), up, up + tall,
                half, half * rng_range(p->rng, 0.6, 1), pick_any(p));
        up += tall;
        half *= rng_range(p->rng, 0.6, 0.95);
    }
    if (rng_uniform(p->rng) < 0.6) put_trinket(p, 0, 0, up);
}

static void put_column(Place *p) {
    double r = rng_range(p->rng, 0.1, 0.22), high = rng_range(p->rng, 0.6, 1.8);
    int stone = pick_any(p);
    put(p, SOLID_CYLINDER, vec(0, -0.5 * high, 0), vec(r, 0.5 * high, 0), stone);
    put_box(p, 0, 0, 0, 0.08, 1.3 * r, 1.3 * r, stone);
    put_box(p, 0, 0, high, high + 0.07, 1.3 * r, 1.3 * r, stone);
    double ball = r * rng_range(p->rng, 0.8, 1.3);
    put(p, SOLID_BALL, vec(0, -high - 0.07 - ball, 0), vec(ball, ball, ball), pick_any(p));
}

static void put_ball(Place *p) {
    double r = rng_range(p->rng, 0.15, 0.4);
    put(p, SOLID_BALL, vec(0, -r, 0), vec(r, r, r), pick_any(p));
}

static void put_floor_lamp(Place *p) {
    Material glow = synth_material(p->rng, PATTERN_NOISE);
    double high = rng_range(p->rng, 1.2, 1.6);
    int metal = pick(p, PATTERN_NOISE);
    glow.a = vec(1.0, 0.85, 0.6);
    glow.b = vec(0.95, 0.7, 0.4);
    glow.glows = true;
    put(p, SOLID_CYLINDER, vec(0, -0.5 * high, 0), vec(0.02, 0.5 * high, 0), metal);
    put(p, SOLID_CYLINDER, vec(0, -0.015, 0), vec(0.15, 0.015, 0), metal);
    put(p, SOLID_CYLINDER, vec(0, -high - 0.12, 0), vec(0.16, 0.14, 0),
        add_material(p->scene, glow));
}

static void put_rug(Place *p) {
    double half = rng_range(p->rng, 0.6, 1.2);
    put_box(p, 0, 0, 0, 0.012, half, half * rng_range(p->rng, 0.5, 0.9), pick_any(p));
}

/* ---- rooms ---- */

static void furnish_floor(SynthScene *s, Rng *rng) {
    static void (*const pieces[])(Place *) = {put_table, put_table,      put_seat,
                                              put_stack, put_stack,      put_column,
                                              put_ball,  put_floor_lamp, put_rug};
    int count = 6 + (int)rng_below(rng, 7);
    for (int i = 0; i < count; i++) {
        double margin = 0.5;
        Vec at = vec(rng_range(rng, s->room_low.x + margin, s->room_high.x - margin), 0,
                     rng_range(rng, s->room_low.z + margin, s->room_high.z - margin));
        Place p = place_at(s, rng, at, rng_range(rng, 0, 2 * M_PI));
        pieces[rng_below(rng, sizeof pieces / sizeof pieces[0])](&p);
    }
}

/* Something at wall `w` (0 -x, 1 +x, 2 -z, 3 +z): its back to it, `along` metres aside. */
static Place at_wall(SynthScene *s, Rng *rng, int w, double along, double away) {
    static const double angles[4] = {-0.5 * M_PI, 0.5 * M_PI, M_PI, 0};
    Vec at = w == 0   ? vec(s->room_low.x + away, 0, along)
             : w == 1 ? vec(s->room_high.x - away, 0, along)
             : w == 2 ? vec(along, 0, s->room_low.z + away)
                      : vec(along, 0, s->room_high.z - away);
    return place_at(s, rng, at, angles[w]);
}

static double wall_half(const SynthScene *s, int w) {
    return w < 2 ? s->room_high.z : s->room_high.x;
}

/* Pictures, a window or a door's leaf: flat boxes on the wall. */
static void hang_picture(Place *p) {
    double x = rng_range(p->rng, 0.2, 0.6), y = rng_range(p->rng, 0.2, 0.45);
    double up = rng_range(p->rng, 1.2, 1.7);
    put_box(p, 0, -0.015, up - y, up + y, x, 0.015, pick(p, PATTERN_WOOD));
    put_box(p, 0, -0.035, up - 0.86 * y, up + 0.86 * y, 0.9 * x, 0.006, pick(p, PATTERN_PAINTING));
}

static void hang_window(Place *p) {
    Material sky = synth_material(p->rng, PATTERN_NOISE);
    double x = rng_range(p->rng, 0.4, 0.8);
    int frame = pick(p, PATTERN_WOOD);
    sky.a = vec(0.55, 0.75, 1.0);
    sky.b = vec(1.0, 1.0, 0.95);
    sky.size = 0.8;
    sky.glows = true;
    put_box(p, 0, -0.01, 0.9, 2.1, x, 0.01, add_material(p->scene, sky));
    put_box(p, 0, -0.03, 0.9, 2.1, 0.025, 0.02, frame);
    put_box(p, 0, -0.03, 1.5, 1.55, x, 0.02, frame);
    for (int side = -1; side <= 1; side += 2)
        put_box(p, side * x, -0.03, 0.85, 2.15, 0.03, 0.03, frame);
    put_box(p, 0, -0.06, 0.83, 0.88, x + 0.06, 0.06, frame);
    put_box(p, 0, -0.03, 2.1, 2.15, x + 0.03, 0.03, frame);
}

static void furnish_walls(SynthScene *s, Rng *rng) {
    for (int w = 0; w < 4; w++) {
        double half = wall_half(s, w);
        int items = 1 + (int)rng_below(rng, 3);
        for (int i = 0; i < items; i++) {
            double along = half * ((2 * i + 1.0) / items - 1) + rng_range(rng, -0.2, 0.2);
            double what = rng_uniform(rng);
            Place p = at_wall(s, rng, w, along, what < 0.3 ? 0.2 : 0);
            if (what < 0.3)
                put_shelf(&p);
            else if (what < 0.5)
                hang_window(&p);
            else
                hang_picture(&p);
        }
    }
}

static void cover_walls(SynthScene *s, Rng *rng) {
    static const Pattern on_walls[] = {PATTERN_NOISE, PATTERN_STRIPES, PATTERN_BRICK, PATTERN_DOTS,
                                       PATTERN_NOISE};
    static const Pattern on_floors[] = {PATTERN_WOOD, PATTERN_TILES, PATTERN_CHECKER, PATTERN_NOISE,
                                        PATTERN_WOOD};
    Material wall = synth_material(rng, on_walls[rng_below(rng, 5)]);
    for (int w = 0; w < 6; w++) s->walls[w] = wall;
    if (rng_uniform(rng) < 0.5) s->walls[rng_below(rng, 2)] = synth_material(rng, PATTERN_BRICK);
    if (rng_uniform(rng) < 0.5) s->walls[5] = synth_material(rng, on_walls[rng_below(rng, 5)]);
    s->walls[2] = synth_material(rng, PATTERN_NOISE);
    s->walls[2].a = vec(0.75, 0.74, 0.7);
    s->walls[2].b = vec(0.6, 0.6, 0.6);
    s->walls[3] = synth_material(rng, on_floors[rng_below(rng, 5)]);
}

static void light_room(SynthScene *s, Rng *rng) {
    double height = s->room_high.y - s->room_low.y;
    for (int i = 0; i < 2; i++) {
        double power = rng_range(rng, 0.5, 1.0), warm = rng_range(rng, 0.0, 0.3);
        s->light[i] =
            vec(rng_range(rng, -0.7, 0.7) * s->room_high.x, -rng_range(rng, 0.75, 0.95) * height,
                rng_range(rng, -0.7, 0.7) * s->room_high.z);
        s->light_color[i] = vec(power, power * (1 - 0.5 * warm), power * (1 - warm));
    }
    double dim = rng_range(rng, 0.35, 0.6);
    s->ambient = vec(dim * 0.97, dim, dim * 1.03);
}

void synth_furnish(SynthScene *s, Rng *rng) {
    double x = rng_range(rng, 1.8, 3.6), z = rng_range(rng, 1.8, 3.6);
    s->room_low = vec(-x, -rng_range(rng, 2.3, 3.1), -z);
    s->room_high = vec(x, 0, z);
    cover_walls(s, rng);
    light_room(s, rng);
    furnish_floor(s, rng);
    furnish_walls(s, rng);
    surround_solids(s);
}
