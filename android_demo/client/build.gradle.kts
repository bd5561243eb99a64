plugins {
    `java-library`
    id("com.google.protobuf")
}

fun version(of: String) = rootProject.extra[of] as String

java {
    sourceCompatibility = JavaVersion.VERSION_1_8
    targetCompatibility = JavaVersion.VERSION_1_8
}

sourceSets.main { proto { srcDir("../../proto"); include("mien/v1/common.proto", "mien/v1/models.proto", "mien/v1/registrar.proto", "mien/v1/rounds.proto") } }

protobuf {
    protoc { artifact = "com.google.protobuf:protoc:${version("protobuf")}" }
    plugins { create("grpc") { artifact = "io.grpc:protoc-gen-grpc-java:${version("grpc")}" } }
    generateProtoTasks {
        all().configureEach {
            builtins { named("java") { option("lite") } }
            plugins { create("grpc") { option("lite"); option("@generated=omit") } }
        }
    }
}

dependencies {
    api("io.grpc:grpc-okhttp:${version("grpc")}")
    api("io.grpc:grpc-stub:${version("grpc")}")
    api("io.grpc:grpc-protobuf-lite:${version("grpc")}")
    api("com.google.protobuf:protobuf-javalite:${version("protobuf")}")
    implementation("com.google.code.gson:gson:${version("gson")}")
    implementation("org.bouncycastle:bcprov-jdk18on:${version("bouncycastle")}")
    compileOnly("com.microsoft.onnxruntime:onnxruntime:${version("onnxruntime")}")
}
